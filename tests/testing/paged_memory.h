// SPDX-License-Identifier: Apache-2.0
// Pages of sequences in the host's memory for tests: in shuffled places, every byte 0xff (a NaN in
// every format), and page ids behind a sequence's last are huge. Pages that are forgotten are -1.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"

namespace diffserve::testing {

struct SequenceShape {
  int position;  // of its first row in the batch
  int num_tokens;
};

class PagedMemory {
 public:
  PagedMemory(const KvFormat& format, const std::vector<SequenceShape>& shapes,
              uint32_t page_seed = 1)
      : format_(format) {
    int num_pages = 1;
    for (const SequenceShape& shape : shapes)
      num_pages += PagesOf(shape.position + shape.num_tokens);
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
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  // The entries of a sequence's first `count` pages in its table become -1.
  void ForgetPages(size_t sequence, int count) {
    std::fill_n(tables_.begin() + (sequences_[sequence].pages - tables_.data()), count, -1);
  }

  PagedKv kv() { return {bytes_.data(), format_}; }
  const KvFormat& format() const { return format_; }
  const std::vector<SequenceTokens>& sequences() const { return sequences_; }
  const std::vector<int32_t>& tables() const { return tables_; }  // all sequences'
  int num_tokens() const { return num_rows_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  int PagesOf(int length) const { return (length + format_.page_size - 1) / format_.page_size; }

  KvFormat format_;
  std::vector<std::byte> bytes_;
  std::vector<int32_t> tables_;
  std::vector<SequenceTokens> sequences_;
  int num_rows_ = 0;
};

}  // namespace diffserve::testing
