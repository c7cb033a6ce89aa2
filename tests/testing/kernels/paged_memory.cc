// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/paged_memory.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace diffserve::testing {

PagedMemory::PagedMemory(const KvFormat& format, const std::vector<SequenceShape>& shapes,
                         uint32_t page_seed)
    : format_(format) {
  int num_pages = 1;
  for (const SequenceShape& shape : shapes) num_pages += PagesOf(shape.position + shape.num_tokens);
  std::vector<int32_t> ids(static_cast<size_t>(num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(page_seed));
  bytes_.assign(ids.size() * static_cast<size_t>(format.num_groups * format.PageBytes()),
                std::byte{0xff});
  std::vector<size_t> first_page;
  for (const SequenceShape& shape : shapes) {
    first_page.push_back(tables_.size());
    for (int page = 0; page < PagesOf(shape.position + shape.num_tokens); ++page) {
      tables_.push_back(ids.back());
      ids.pop_back();
    }
    tables_.insert(tables_.end(), 2, 2147480000);
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    sequences_.push_back(
        {num_rows_, shapes[i].num_tokens, shapes[i].position, tables_.data() + first_page[i]});
    num_rows_ += shapes[i].num_tokens;
  }
}

void PagedMemory::ForgetPages(size_t sequence, int count) {
  std::fill_n(tables_.begin() + (sequences_[sequence].pages - tables_.data()), count, -1);
}

}  // namespace diffserve::testing
