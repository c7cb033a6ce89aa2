// SPDX-License-Identifier: Apache-2.0
// Arguments of each level's packing kernel. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/ops/weight_format.h"

namespace diffserve {

// One output feature as the checkpoint stores it: [in_features].
struct PanelRow {
  const void* values;
  DType dtype;
};

// One panel of a quantised format (weight_format.h).
struct QuantizedPanel {
  WeightFormat format;
  const PanelRow* rows;  // of its first columns; the other columns hold zeros
  int num_rows;
  int64_t in_features;
  uint8_t* panel;
  float* scales;  // kInt8: [panel_columns]
};

struct PackerKernels {
  // False if the format cannot hold one of the values; the panel is then unfinished.
  bool (*pack)(const QuantizedPanel& to);

  static const PackerKernels &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const PackerKernels& paired16();
};

// The largest weight that int4 holds: the scale of a group is an eighth of it, in float16.
inline constexpr float kInt4WeightMax = kFloat16Max * Int4Panel::kZero;

}  // namespace diffserve
