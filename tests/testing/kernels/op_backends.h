// SPDX-License-Identifier: Apache-2.0
// What the test text of an op runs: each backend takes a case in plain host memory and gives the
// results. kernels_test and cuda_test compile the same texts (tests/kernels/OP_test.cc), each with
// its own backends (tests/kernels/OP_on_cpu.cc, tests/cuda/OP_on_cuda.cc); without a device
// cuda_test has none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops/embedding.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rowwise.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/weight_format.h"

namespace diffserve::testing {

struct LinearTestInput {
  std::vector<float> x;
  int num_tokens = 0;
  std::vector<float> y = {};  // what is accumulated to
  bool accumulate = false;
  int64_t x_stride = 0;  // as LinearArgs'
};
using PackedRun = std::function<std::vector<float>(const LinearTestInput& input)>;  // y

struct LinearBackend {
  std::string name;
  WeightFormat format;
  DType activations;               // of y, where that is asked for
  DType inputs;                    // what x is rounded to
  int unit = 1;                    // features are a multiple of it
  bool is_batch_invariant = true;  // a token's bits do not depend on the number of tokens
  std::function<PackedRun(const std::vector<LinearPart>& parts, LinearOutput output)> pack;
};
std::vector<LinearBackend> LinearBackends();

struct EmbeddingBackend {
  std::string name;
  WeightFormat format;
  // args.out is not used.
  std::function<std::vector<float>(const TensorView& table, const EmbeddingLookupArgs& args,
                                   const std::vector<int32_t>& drawn)>
      run;
};
std::vector<EmbeddingBackend> EmbeddingBackends();

// args.out is not used, and inputs are of the type of activations.
struct RowwiseBackend {
  std::string name;
  DType activations;
  std::function<std::vector<float>(const RmsNormArgs<float>& args, int num_x)> rms_norm;
  std::function<std::vector<float>(const LayerNormArgs<float>& args, int num_x)> layer_norm;
  std::function<std::vector<float>(const SiluMulArgs<float>& args)> silu_mul;
  std::function<std::vector<float>(const PolyNormMulArgs<float>& args)> poly_norm_mul;
  std::function<std::vector<float>(std::vector<float> x)> sigmoid;
};
std::vector<RowwiseBackend> RowwiseBackends();

struct SampleBackend {
  std::string name;
  bool is_slow = false;  // an interpreter of the kernel: a few rows at a time
  // What args.sampled holds afterwards, in the place of what it held; the logits stay.
  std::function<std::vector<SampledToken>(const SampleArgs& args)> run;
  // Calls check under other schedules of the threads.
  std::function<void(const std::function<void()>& check)> on_every_schedule =
      [](const auto& check) { check(); };
};
std::vector<SampleBackend> SampleBackends();

}  // namespace diffserve::testing
