// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/draft_pages.h"

#include <algorithm>

#include "engine/policy/sequence.h"
#include "kernels/process/check.h"

namespace diffserve {

int DraftPages::Count(Sequence& sequence) const {
  int& full = sequence.num_drafted_pages;
  while (full < std::ssize(sequence.pages)) {
    const int count = counts_[static_cast<size_t>(sequence.pages[static_cast<size_t>(full)])];
    if (count < page_size_) return full * page_size_ + count;
    ++full;
  }
  return full * page_size_;
}

bool DraftPages::Reserve(const Sequence& sequence, int num_drafted) {
  const int32_t first = sequence.pages[static_cast<size_t>(num_drafted / page_size_)];
  if (std::ranges::find(first_pages_, first) != first_pages_.end()) return false;
  first_pages_.push_back(first);
  return true;
}

void DraftPages::Take(const Sequence& sequence, const DraftWork& work) {
  for (int begin = work.first / page_size_ * page_size_; begin < work.computed_end();
       begin += page_size_) {
    const int32_t page = sequence.pages[static_cast<size_t>(begin / page_size_)];
    counts_[static_cast<size_t>(page)] = std::min(page_size_, work.computed_end() - begin);
  }
}

void DraftPages::Cut(Sequence& sequence, int end) {
  const auto before = static_cast<int>(sequence.pages.size()) - 1;
  int& count = counts_[static_cast<size_t>(sequence.pages.back())];
  count = std::min(count, end - before * page_size_);
  sequence.num_drafted_pages = std::min(sequence.num_drafted_pages, before);
}

void DraftPages::CheckInvariants(const Sequence& sequence) const {
  for (int page = 0; page < std::ssize(sequence.pages); ++page) {
    const int count = counts_[static_cast<size_t>(sequence.pages[static_cast<size_t>(page)])];
    DS_CHECK(count == page_size_ || page >= sequence.num_drafted_pages,
             "the leading pages are drafted");
    DS_CHECK(count == 0 || page * page_size_ + count <= sequence.num_computed,
             "only computed tokens are drafted");
  }
}

}  // namespace diffserve
