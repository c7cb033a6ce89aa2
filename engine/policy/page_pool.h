// SPDX-License-Identifier: Apache-2.0
// PagePool: which pages of the KV cache are free, cached or in use. It handles page numbers only
// and knows neither a page's content nor its holders. Owned by the Scheduler.
//
// Invariants: each page is exactly one of free (no holder, content worthless), cached (no holder,
// content in the prefix index) or in use (one or more holders). A cached page is reused only when
// none is free, the least recently released first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace diffserve {

class PagePool {
 public:
  explicit PagePool(int num_pages);

  struct Grant {
    int32_t page = 0;
    bool was_cached = false;  // the caller must take the page out of the prefix index
  };
  // Returns a page with one holder; nullopt if every page is in use.
  std::optional<Grant> Allocate();
  // Adds a holder. REQUIRES: the page is cached or in use.
  void Share(int32_t page);
  // Removes a holder. The last one leaves the page cached if `keep`, else free. REQUIRES: in use.
  void Release(int32_t page, bool keep);
  // Frees a page whose content has become worthless. REQUIRES: cached.
  void Forget(int32_t page);

  int num_pages() const { return static_cast<int>(pages_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return num_cached_; }
  int num_in_use() const { return num_pages() - num_free() - num_cached(); }
  int num_available() const { return num_free() + num_cached(); }
  int holders(int32_t page) const { return pages_[page].holders; }
  bool is_cached(int32_t page) const { return pages_[page].state == State::kCached; }

  void CheckInvariants() const;

 private:
  enum class State : uint8_t { kFree, kCached, kInUse };
  struct Page {
    State state = State::kFree;
    int holders = 0;
    int32_t older = -1, newer = -1;  // neighbours in the list of cached pages
  };
  void PushNewest(int32_t page);
  void Unlink(int32_t page);

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // the back is allocated next
  int32_t oldest_ = -1, newest_ = -1;
  int num_cached_ = 0;
};

}  // namespace diffserve
