// SPDX-License-Identifier: Apache-2.0
// TwoLevelStore: pages of the prefix cache of a device in files, and before them in host memory.
// Append copies an entry from the device to host memory; WriteBehind writes it from there to the
// files later. Entries that wait for that take at most half of the host memory: then Append writes.
// Read takes an entry from host memory, or from the files into host memory. So the files are read
// and written in host memory only, and the device sees copies of its own stream only.
//
// Thread safety: as EntryStore.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/page_store/entry_store.h"
#include "engine/page_store/host_store.h"

namespace diffserve {

class TwoLevelStore : public EntryStore {
 public:
  // Units of host memory that keep an appending thread and two reading ones at work with entries of
  // at most `entry_units`.
  static constexpr size_t MinUnits(size_t entry_units) { return 6 * entry_units; }

  // REQUIRES: the host memory has MinUnits of the largest entry.
  TwoLevelStore(std::unique_ptr<HostStore> host, std::unique_ptr<EntryStore> files);

  bool Contains(const RecordKey& key) const override;
  Status Append(const RecordKey& key, std::span<const int32_t> tokens,
                std::span<const iovec> payload) override;
  Status Read(const RecordKey& key, std::span<const int32_t> tokens,
              std::span<const iovec> payload) override;
  void Erase(const RecordKey& key) override;
  void Clear() override;
  std::optional<Status> WriteBehind() override;
  bool HasUnwritten() const override;

  // These count what is in the files.
  int64_t bytes() const override { return files_->bytes(); }
  int64_t max_bytes() const override { return files_->max_bytes(); }
  size_t num_records() const override { return files_->num_records(); }
  size_t num_sibling_records() const override { return files_->num_sibling_records(); }

 private:
  struct Unwritten {
    RecordKey key;
    std::vector<int32_t> tokens;
    HostStore::Held held;
    size_t units = 0;
  };
  // What is being written to the files.
  struct Writing {
    RecordKey key;
    bool is_stale = false;  // it was erased in the meantime
  };

  const std::unique_ptr<HostStore> host_;
  const std::unique_ptr<EntryStore> files_;

  mutable std::mutex mutex_;  // of what follows; the stores' own are taken within
  std::deque<Unwritten> unwritten_;
  size_t unwritten_units_ = 0;
  std::optional<Writing> writing_;
  uint64_t num_erasures_ = 0;  // calls of Erase and Clear
};

}  // namespace diffserve
