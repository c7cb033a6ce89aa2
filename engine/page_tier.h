// SPDX-License-Identifier: Apache-2.0
// PageTier: a second place for the pages of the prefix cache, in which a miss may still be found.
// The Scheduler decides which pages are loaded and kept; a tier moves their bytes on threads of its
// own and never makes a plan wait. The real one is engine/page_store/disk_tier.h. Owned by the
// engine loop.
//
// Thread safety: all calls come from the engine thread, but stats() from any.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace diffserve {

// Identifies a page by all tokens up to its end and the cache salt, in every process. A digest: no
// two different prefixes have the same.
struct TierKey {
  uint64_t high = 0, low = 0;
  bool operator==(const TierKey&) const = default;
};
TierKey RootTierKey(std::string_view salt);
TierKey NextTierKey(const TierKey& parent, std::span<const int32_t> tokens);

struct TierPage {
  TierKey key;
  std::vector<int32_t> tokens;  // [page_size]
  int32_t page = -1;            // in the pool
};

// Gauges and counters of a tier.
struct TierStats {
  int64_t bytes = 0, bytes_max = 0;
  uint64_t pages = 0;
  uint64_t bytes_read = 0, bytes_written = 0, pages_read = 0, pages_written = 0;
  uint64_t read_errors = 0, write_errors = 0;  // pages
};

class PageTier {
 public:
  virtual ~PageTier() = default;

  // Sets what a thread of the tier calls whenever TakeDone has something new.
  virtual void OnDone(std::function<void()> wake) = 0;
  // Whether the tier holds a page.
  virtual bool Contains(const TierKey& key) = 0;
  // Fills the pages, in order. They are used by nothing else until the load is done.
  virtual void Load(uint64_t load, std::vector<TierPage> pages) = 0;
  // The pages that are not filled yet need not be. The load is done all the same.
  virtual void Cancel(uint64_t load) = 0;
  // How many more pages Keep takes now.
  virtual int num_free() const = 0;
  // Copies a page, which does not change until that is done. REQUIRES: num_free() > 0.
  virtual void Keep(TierPage page) = 0;
  // Forgets a page whose content cannot be trusted.
  virtual void Forget(const TierKey& key) = 0;
  // Forgets all pages, also those that are being kept.
  virtual void Clear() = 0;

  struct Done {
    uint64_t load = 0;   // 0: a page was kept, or could not be
    int num_loaded = 0;  // its leading pages that are right
  };
  // What is done since the last call. Pages are kept in the order of the calls.
  virtual std::vector<Done> TakeDone() = 0;
  virtual TierStats stats() const = 0;
};

}  // namespace diffserve
