// SPDX-License-Identifier: Apache-2.0
// PageTier: a second place for the prefix cache, in which a miss may still be found. It holds
// pages, and snapshots of what sequences keep outside pages (engine/policy/state_store.h). The
// Scheduler decides what is loaded and kept; a tier moves the bytes on threads of its own and never
// makes a plan wait. The real one is engine/page_store/store_tier.h. Owned by the engine loop.
//
// Thread safety: all calls come from the engine thread, but stats() from any.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace diffserve {

// Identifies a prefix that ends with a page, by all its tokens and the cache salt, in every
// process. A digest: no two different prefixes have the same.
struct TierKey {
  uint64_t high = 0, low = 0;
  bool operator==(const TierKey&) const = default;
};
TierKey RootTierKey(std::string_view salt);
TierKey NextTierKey(const TierKey& parent, std::span<const int32_t> tokens);

// The memory of a snapshot: a slot of states, and the pages of the windows before its position.
struct SnapshotMemory {
  int32_t slot = -1;
  std::vector<int32_t> window_pages = {};
};

// What a tier holds at the end of a prefix.
enum class TierKind : uint8_t {
  kPage,      // the prefix's last page
  kSnapshot,  // the states and windows after its last token
};

struct TierEntry {
  TierKey key;
  std::vector<int32_t> tokens;  // [page_size], of the last page
  int32_t page = -1;            // in the pool; -1: a snapshot
  SnapshotMemory snapshot = {};
  TierKind kind() const { return page < 0 ? TierKind::kSnapshot : TierKind::kPage; }
};

// Which tiers of the prefix cache a reset empties.
struct CacheReset {
  bool memory = false, second_tier = false;
  bool any() const { return memory || second_tier; }
};

// Gauges and counters of a tier. Snapshots are counted as pages.
struct TierStats {
  int64_t bytes = 0, bytes_max = 0;
  uint64_t pages = 0;
  uint64_t sibling_pages = 0;  // that other processes have kept and this one finds
  uint64_t bytes_read = 0, bytes_written = 0, pages_read = 0, pages_written = 0;
  uint64_t read_errors = 0, write_errors = 0;  // pages
};

class PageTier {
 public:
  virtual ~PageTier() = default;

  // Sets what a thread of the tier calls whenever TakeDone has something new.
  virtual void OnDone(std::function<void()> wake) = 0;
  virtual bool Contains(const TierKey& key, TierKind kind) = 0;
  // Fills the memory of the entries, in order. Nothing else uses it until the load is done.
  virtual void Load(uint64_t load, std::vector<TierEntry> entries) = 0;
  // The entries that are not filled yet need not be. The load is done all the same.
  virtual void Cancel(uint64_t load) = 0;
  // How many more entries Keep takes now.
  virtual int num_free() const = 0;
  // Copies the entry's memory, which does not change until that is done. REQUIRES: num_free() > 0.
  virtual void Keep(TierEntry entry) = 0;
  // Whether all that was kept is where it stays. When it becomes true, OnDone's function is called.
  virtual bool IsSettled() const { return true; }
  // Forgets the page and the snapshot, because their content cannot be trusted.
  virtual void Forget(const TierKey& key) = 0;
  // Forgets everything, also what is being kept.
  virtual void Clear() = 0;

  struct Done {
    uint64_t load = 0;   // 0: an entry was kept, or could not be
    int num_loaded = 0;  // its leading entries that are right
  };
  // What is done since the last call. Entries are kept in the order of the calls.
  virtual std::vector<Done> TakeDone() = 0;
  virtual TierStats stats() const = 0;
};

}  // namespace diffserve
