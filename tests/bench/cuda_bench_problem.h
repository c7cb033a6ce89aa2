// SPDX-License-Identifier: Apache-2.0
// One attention call on the device for the benchmark: pages in shuffled places, of which there may
// be several copies so that each run finds none of its pages in the L2 cache.
#pragma once

#include <optional>
#include <vector>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/base/cuda/memory.h"
#include "tests/bench/cuda_bench_timing.h"

namespace diffserve::bench {

struct ProblemShape {
  int batch = 1;
  int position = 0;  // of the first row of every sequence
  int rows = 1;      // of every sequence
  bool is_decode = true;
  int copies = 1;                           // of the pages
  int split_slots = cuda::kSplitsByLength;  // of decode
  bool allow_bulk_copies = true;
  DType pages = DType::kBFloat16;  // others hold one code everywhere: no score exceeds another
  // Which K map, columns of V and columns of q this problem has, where it is a part of another one.
  int first_map = 0;
  int first_v_column = 0;
  int first_q_column = 0;
};

class Problem {
 public:
  Problem(const DiffSpec& spec, const ProblemShape& shape, const cuda::Stream& stream);

  // Planned already; the plan serves all layers of a step. follows_kernel as in AttentionSchedule.
  void Queue(int run, bool follows_kernel = false) const;
  // Rotates and appends the rows. REQUIRES: not decode.
  void QueueAppend(int run) const;
  std::vector<uint16_t> Out() const;

  const DiffSpec& spec() const { return spec_; }
  // K and V that one run has to read.
  double KvBytes() const;
  // Query-key pairs of all signal heads.
  double Pairs() const;

  static double BytesOfOneCopy(const DiffSpec& spec, const ProblemShape& shape);

 private:
  int length() const { return shape_.position + shape_.rows; }
  template <typename T>
  cuda::DeviceBuffer Upload(const std::vector<T>& values) const;
  void MakeMemoryOfPrompts(size_t num_pages, size_t num_tokens);
  cuda::DeviceBuffer MakePages(int64_t num_pages) const;

  DiffSpec spec_;
  ProblemShape shape_;
  const cuda::Stream& stream_;
  std::vector<cuda::DeviceBuffer> pages_of_copies_;
  cuda::DeviceBuffer sequences_, row_sequences_, page_table_, q_, out_, lambda_rows_, items_,
      plan_head_, partials_, counters_, widened_, widened_ids_, qkv_, angles_;
  DiffAttentionArgs<BFloat16> args_;
  cuda::AttentionSchedule schedule_;
};

}  // namespace diffserve::bench
