// SPDX-License-Identifier: Apache-2.0
// What the test texts of diff_attention run. kernels_test and cuda_test compile the same texts
// (tests/kernels/diff_attention_test.cc and attention_window_test.cc), each with its own backends
// (tests/kernels/diff_attention_on_cpu.cc, tests/cuda/diff_attention_on_cuda.cc); without a device
// cuda_test has none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/testing/kernels/attention_batch.h"

namespace diffserve::testing {

struct AttentionBackend {
  std::string name;
  DType pages;
  DType activations;
  KvArrangement arrangement;
  std::vector<int> page_sizes;
  std::vector<int> head_dims;  // that it has kernels for
  bool takes_every_v_dim;      // else as many as head_dim, or twice
  std::function<std::vector<float>(AttentionBatch&)> run;
};
std::vector<AttentionBackend> DiffAttentionBackends();
// The same over pages of codes, which round q.
std::vector<AttentionBackend> CodePageBackends();

}  // namespace diffserve::testing
