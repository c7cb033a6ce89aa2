// What the linear kernel of each level is called with; weight_format.h says how packed weights lie
// in memory. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/ops/weight_format.h"

namespace diffserve {

// Panels [panel_begin, panel_end) of y = x W^T (+ bias) (+ y) for all rows of x, which are the
// step's tokens: one worker's share.
struct LinearSlice {
  const void* panels;
  WeightFormat format;
  int out_features;
  int in_features;
  const float* bias;  // [out_features] or nullptr
  const float* x;     // [rows, in_features]
  int rows;
  float* y;  // [rows, out_features]
  bool accumulate;
  int panel_begin;
  int panel_end;
};

}  // namespace diffserve
