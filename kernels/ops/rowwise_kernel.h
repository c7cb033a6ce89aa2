// SPDX-License-Identifier: Apache-2.0
// Each level's row-wise kernels. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/ops/rowwise.h"

namespace diffserve {

// For tokens [begin, end).
struct RowwiseKernels {
  void (*rms_norm)(const RmsNormArgs<float>& args, int begin, int end);
  void (*layer_norm)(const LayerNormArgs<float>& args, int begin, int end);
  void (*silu_mul)(const SiluMulArgs<float>& args, int begin, int end);
  void (*poly_norm_mul)(const PolyNormMulArgs<float>& args, int begin, int end);
  void (*sigmoid)(float* x, int64_t count);  // in place

  static const RowwiseKernels &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const RowwiseKernels& paired16();
};

}  // namespace diffserve
