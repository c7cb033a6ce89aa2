// What the test text of diff_attention runs. kernels_test and cuda_test compile the same text
// (tests/kernels/diff_attention_test.cc), each with its own backends
// (tests/kernels/diff_attention_on_cpu.cc, tests/cuda/diff_attention_on_cuda.cc); without a device
// cuda_test has none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/testing/attention_batch.h"

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

}  // namespace diffserve::testing
