// SPDX-License-Identifier: Apache-2.0
// Arguments of each level's linear kernel; weight_format.h describes packed weights in memory.
// Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/ops/weight_format.h"

namespace diffserve {

// The form of the activations that a kernel reads.
enum class LinearInput : uint8_t {
  kFloat32,   // unchanged
  kBFloat16,  // rounded to nearest even
  kInt8,      // codes within +-127 with one scale per token and group of kQuantGroup
};

// rows x in_features activations. Rows are padded with zeros to a multiple of kQuantGroup elements,
// except in float32.
struct LinearX {
  LinearInput kind = LinearInput::kFloat32;
  void* values = nullptr;   // [rows][stride]
  int64_t stride = 0;       // elements
  float* scales = nullptr;  // kInt8: [rows][groups]
  // kInt8: [rows][groups], the first term of a group's integer sum: minus the sum of the codes,
  // times the weight code that stands for 0.
  int32_t* offsets = nullptr;
};

// Rows [begin, end) of x, to convert into another kind of LinearX.
struct LinearInputSlice {
  WeightFormat format;  // of the weights that they multiply
  const float* x;       // [rows, in_features]
  int64_t x_stride;
  int in_features;
  int begin;
  int end;
  LinearX to;
};

// One worker's share: panels [panel_begin, panel_end) of y = x W^T (+ bias) (+ y) for all rows of
// x, which are the step's tokens.
struct LinearSlice {
  const void* panels;
  int64_t panel_bytes;
  WeightFormat format;
  int out_features;
  int in_features;
  const float* scale;  // kInt8: [out_features]; else nullptr
  const float* bias;   // [out_features] or nullptr
  LinearX x;
  int rows;
  float* y;  // [rows, out_features]
  bool accumulate;
  int panel_begin;
  int panel_end;
};

// For activations in float32.
struct LinearKernels {
  int panel_columns;  // output features in a panel of packed weights
  void (*linear)(const LinearSlice& slice);

  static const LinearKernels &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const LinearKernels& paired16();
};

struct LinearDotKernels {
  LinearInput (*kind)(WeightFormat format);  // the activations that multiply such weights
  // For the other kinds than float32:
  void (*pack)(const LinearInputSlice& slice);
  void (*linear)(const LinearSlice& slice);

  static const LinearDotKernels &plain(), &avx2(), &avx512(), &avx512_vnni(), &avx512_bf16(),
      &neon(), &neon_dot(), &neon_bf16();
  [[gnu::weak]] static const LinearDotKernels& paired16();
};

}  // namespace diffserve
