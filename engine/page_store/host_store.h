// SPDX-License-Identifier: Apache-2.0
// HostStore: pages of the prefix cache of a device in host memory. The memory is taken once and cut
// into units of a page's size; a snapshot takes several. What was used least recently makes room,
// unless it is held.
//
// Thread safety: as EntryStore.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/page_store/entry_store.h"
#include "models/device_transfer.h"

namespace diffserve {

class HostStore : public EntryStore {
 private:
  struct Entry;

 public:
  // An entry's bytes stay where they are while somebody holds it, also when it is forgotten. It is
  // released before the store.
  using Held = std::shared_ptr<const Entry>;
  // As many units as fit `max_bytes`. Error: kResourceExhausted. REQUIRES: at least one fits.
  static Result<std::unique_ptr<HostStore>> Create(std::shared_ptr<DeviceTransfer> transfer,
                                                   int64_t max_bytes, size_t unit_bytes);

  bool Contains(const RecordKey& key) const override;
  Status Append(const RecordKey& key, std::span<const int32_t> tokens,
                std::span<const iovec> payload) override;
  Status Read(const RecordKey& key, std::span<const int32_t> tokens,
              std::span<const iovec> payload) override;
  void Erase(const RecordKey& key) override;
  void Clear() override;

  // Stores an entry whose host memory `fill` writes, unless the key is there already. Errors:
  // kResourceExhausted; those of `fill`. Any thread may call it.
  Result<Held> Fill(const RecordKey& key, std::span<const int32_t> tokens, size_t payload_bytes,
                    const std::function<Status(std::span<const iovec>)>& fill);
  // nullptr: the key is not there.
  Held Hold(const RecordKey& key);
  // The host memory of a held entry.
  std::vector<iovec> HostMemory(const Held& held) const;
  // As Read, of a held entry.
  Status ReadHeld(const Held& held, std::span<const iovec> payload) const;

  int64_t bytes() const override;
  int64_t max_bytes() const override;
  size_t num_records() const override;
  size_t num_units() const { return num_units_; }
  size_t UnitsOf(size_t payload_bytes) const {
    return (payload_bytes + unit_bytes_ - 1) / unit_bytes_;
  }

 private:
  struct Entry {
    std::vector<int32_t> tokens;
    std::vector<size_t> units;
    size_t payload_bytes = 0;
    int num_holders = 0;
    bool is_erased = false;
    std::list<RecordKey>::iterator use;  // in uses_
  };

  HostStore(std::shared_ptr<DeviceTransfer> transfer, std::shared_ptr<std::byte> memory,
            size_t num_units, size_t unit_bytes);
  std::vector<MemoryCopy> Copies(std::span<const iovec> payload, const std::vector<size_t>& units,
                                 bool to_host) const;
  std::vector<iovec> HostMemory(const Entry& entry) const;
  Result<Held> Add(const RecordKey& key, std::span<const int32_t> tokens, size_t payload_bytes,
                   const std::function<Status(const Entry&)>& fill);
  Held HoldEntry(const std::shared_ptr<Entry>& entry);
  void Release(Entry& entry);
  bool TakeUnits(size_t count, std::vector<size_t>& units);
  bool EvictOne();
  void Remove(const RecordKey& key);
  void FreeUnits(const Entry& entry);

  const std::shared_ptr<DeviceTransfer> transfer_;
  const std::shared_ptr<std::byte> memory_;
  const size_t num_units_, unit_bytes_;

  mutable std::mutex mutex_;  // of what follows
  std::unordered_map<RecordKey, std::shared_ptr<Entry>, RecordKeyHash> entries_;
  std::list<RecordKey> uses_;  // of the entries, least recently used first
  std::vector<size_t> free_units_;
};

}  // namespace diffserve
