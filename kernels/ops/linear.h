// Linear layers on packed weights: y = x W^T (+ bias). W is [out_features, in_features], as
// checkpoints store it.
//
// Weights are packed once at load into panels of output features (in_features innermost pairs for
// bfloat16), in the order that the chosen level's micro-kernel reads. Activations are float32;
// products are accumulated in float32, one chain over in_features in ascending order for each
// output element, so a row's result does not depend on the other rows, on how many there are, or on
// the number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/tensor.h"
#include "kernels/base/thread_pool.h"

namespace diffserve {

// Part of a packed matrix: rows of a checkpoint tensor in a given order. Several parts are stacked
// (q, k and v become one matrix).
struct LinearPart {
  TensorView weight;               // [n, in_features], float32, bfloat16 or float16
  std::vector<int32_t> row_order;  // output feature i of this part is weight row row_order[i];
                                   // empty = as stored
  TensorView bias;                 // [n] in the checkpoint's order, or data == nullptr
};

enum class LinearOutput { kActivation, kFloat32 };

class PackedLinear {
 public:
  PackedLinear() = default;
  // REQUIRES: all parts share in_features; dtype is kFloat32 or kBFloat16 (a wider checkpoint is
  // rounded to nearest even).
  PackedLinear(std::span<const LinearPart> parts, DType dtype, CpuIsa isa, ThreadPool& pool);

  int out_features() const { return out_features_; }
  int in_features() const { return in_features_; }
  DType dtype() const { return dtype_; }
  CpuIsa isa() const { return isa_; }
  size_t weight_bytes() const { return panels_.size_bytes(); }
  const void* panels() const { return panels_.data(); }
  const float* bias() const {
    return bias_.empty() ? nullptr : bias_.data();
  }  // [out_features], or nullptr

 private:
  int out_features_ = 0;
  int in_features_ = 0;
  DType dtype_ = DType::kFloat32;
  CpuIsa isa_ = CpuIsa::kAvx2;
  Buffer panels_;
  std::vector<float> bias_;
};

struct LinearArgs {
  const float* x = nullptr;  // [rows, in_features]
  int rows = 0;
  float* y = nullptr;       // [rows, out_features]; row stride y_stride elements
  int64_t y_stride = 0;     // 0 = out_features
  bool accumulate = false;  // y += x W^T (the residual connection); the sum is added to y once, at
                            // the end
};

// Naive double-precision y from the checkpoint's own tensors: the oracle.
void LinearRef(std::span<const LinearPart> parts, const LinearArgs& args);

namespace cpu {
void Linear(const PackedLinear& weight, const LinearArgs& args, ThreadPool& pool);
}  // namespace cpu

}  // namespace diffserve
