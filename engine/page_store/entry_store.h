// SPDX-License-Identifier: Apache-2.0
// EntryStore: where a tier of the prefix cache keeps the bytes of pages and snapshots: in files
// (page_store.h), in host memory (host_store.h), or in both (two_level_store.h).
//
// Thread safety: Append and WriteBehind are called by one thread at a time; all other members by
// any thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>

#include "engine/page_store/page_record.h"
#include "kernels/base/status.h"

namespace diffserve {

class EntryStore {
 public:
  virtual ~EntryStore() = default;

  virtual bool Contains(const RecordKey& key) const = 0;
  // Stores the bytes of these parts, unless the key is there already. Forgets what was used least
  // recently to make room. Error: why nothing was stored.
  virtual Status Append(const RecordKey& key, std::span<const int32_t> tokens,
                        std::span<const iovec> payload) = 0;
  // Fills these parts, which have as many bytes as were stored. Errors: kNotFound if the key is not
  // there (any more); kInternal if it cannot be read or is damaged. It is forgotten then.
  virtual Status Read(const RecordKey& key, std::span<const int32_t> tokens,
                      std::span<const iovec> payload) = 0;
  // Writes an entry to where it is to stay, if Append has only taken it. nullopt: there is none.
  virtual std::optional<Status> WriteBehind() { return std::nullopt; }
  virtual bool HasUnwritten() const { return false; }
  virtual void Erase(const RecordKey& key) = 0;
  virtual void Clear() = 0;

  virtual int64_t bytes() const = 0;
  virtual int64_t max_bytes() const = 0;
  virtual size_t num_records() const = 0;
  // Records that other processes have stored and Read finds.
  virtual size_t num_sibling_records() const { return 0; }
};

}  // namespace diffserve
