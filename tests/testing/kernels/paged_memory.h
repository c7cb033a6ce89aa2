// SPDX-License-Identifier: Apache-2.0
// Pages of sequences in the host's memory for tests: in shuffled places, every byte 0xff (a NaN in
// every format), and page ids behind a sequence's last are huge. Pages that are forgotten are -1.
#pragma once

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
              uint32_t page_seed = 1);
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  // The entries of a sequence's first `count` pages in its table become -1.
  void ForgetPages(size_t sequence, int count);

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
