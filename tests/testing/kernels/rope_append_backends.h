// SPDX-License-Identifier: Apache-2.0
// What the test text of rope_append runs. kernels_test and cuda_test compile the same text
// (tests/kernels/rope_append_test.cc), each with its own backends
// (tests/kernels/rope_append_on_cpu.cc, tests/cuda/rope_append_on_cuda.cc); without a device
// cuda_test has none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops/rope_append.h"
#include "tests/testing/kernels/kernel_tolerance.h"
#include "tests/testing/kernels/paged_memory.h"

namespace diffserve::testing {

// A batch of rows on its way into pages.
struct RopeCase {
  DiffSpec spec;
  RopeStyle style;
  RopeTable rope;
  PagedMemory memory;
  std::vector<float> qkv;
  bool has_kv = true;
  std::vector<float> q = {};  // out, as the pages of `memory`
};

struct RopeAppendBackend {
  std::string name;
  DType pages;
  DType activations;
  KvArrangement arrangement;
  int unit;  // head_dim and v_dim are multiples of it
  std::vector<int> page_sizes;
  bool clears_fresh_pages;  // behind the sequence's last row
  std::function<void(RopeCase&)> run;
};
std::vector<RopeAppendBackend> RopeAppendBackends();

}  // namespace diffserve::testing
