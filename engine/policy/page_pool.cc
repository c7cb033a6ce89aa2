// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/page_pool.h"

#include "kernels/process/check.h"

namespace diffserve {

PagePool::PagePool(int num_pages) : pages_(num_pages) {
  DS_CHECK(num_pages > 0, "a pool has at least one page");
  free_.reserve(num_pages);
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

std::optional<PagePool::Grant> PagePool::Allocate() {
  Grant grant;
  if (!free_.empty()) {
    grant.page = free_.back();
    free_.pop_back();
  } else if (oldest_ >= 0) {
    grant = {oldest_, true};
    Unlink(oldest_);
  } else {
    return std::nullopt;
  }
  Page& page = pages_[grant.page];
  page.state = State::kInUse;
  page.holders = 1;
  return grant;
}

void PagePool::Share(int32_t page) {
  DS_CHECK(pages_[page].state != State::kFree, "only a page with content is shared");
  if (pages_[page].state == State::kCached) Unlink(page);
  pages_[page].state = State::kInUse;
  ++pages_[page].holders;
}

void PagePool::Release(int32_t page, bool keep) {
  DS_CHECK(pages_[page].state == State::kInUse && pages_[page].holders > 0,
           "only a held page is released");
  if (--pages_[page].holders > 0) return;
  if (keep) {
    PushNewest(page);
  } else {
    pages_[page].state = State::kFree;
    free_.push_back(page);
  }
}

void PagePool::Forget(int32_t page) {
  DS_CHECK(pages_[page].state == State::kCached, "only a cached page is forgotten");
  Unlink(page);
  pages_[page].state = State::kFree;
  free_.push_back(page);
}

void PagePool::PushNewest(int32_t page) {
  pages_[page].state = State::kCached;
  pages_[page].older = newest_;
  pages_[page].newer = -1;
  (newest_ >= 0 ? pages_[newest_].newer : oldest_) = page;
  newest_ = page;
  ++num_cached_;
}

void PagePool::Unlink(int32_t page) {
  Page& p = pages_[page];
  (p.older >= 0 ? pages_[p.older].newer : oldest_) = p.newer;
  (p.newer >= 0 ? pages_[p.newer].older : newest_) = p.older;
  p.older = p.newer = -1;
  --num_cached_;
}

void PagePool::CheckInvariants() const {
  std::vector<int> seen(pages_.size(), 0);
  for (int32_t page : free_) {
    DS_CHECK(pages_[page].state == State::kFree && pages_[page].holders == 0,
             "a page of the free list is free");
    ++seen[page];
  }
  int cached = 0;
  for (int32_t page = oldest_, older = -1; page >= 0; older = page, page = pages_[page].newer) {
    DS_CHECK(pages_[page].state == State::kCached && pages_[page].holders == 0,
             "a page of the cached list is cached");
    DS_CHECK(pages_[page].older == older, "the cached list is linked both ways");
    DS_CHECK(++cached <= num_cached_, "the cached list has as many pages as are counted");
    ++seen[page];
  }
  DS_CHECK(cached == num_cached_, "the cached list has as many pages as are counted");
  for (size_t page = 0; page < pages_.size(); ++page) {
    const bool in_use = pages_[page].state == State::kInUse;
    DS_CHECK(in_use == (pages_[page].holders > 0), "a page in use has a holder");
    DS_CHECK(seen[page] == (in_use ? 0 : 1), "a page is exactly one of free, cached and in use");
  }
}

}  // namespace diffserve
