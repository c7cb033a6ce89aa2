// What the linear kernel of each level is called with; weight_format.h says how packed weights lie
// in memory. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/ops/weight_format.h"

namespace diffserve {

// The activations as a kernel reads them.
enum class LinearInput : uint8_t {
  kFloat32,   // as they are
  kBFloat16,  // rounded to nearest even
  kInt8,      // codes within +-127 with a scale for each token and group of kQuantGroup
};

// rows x in_features of them. A row is padded to a multiple of kQuantGroup elements with zeros,
// unless it is float32.
struct LinearX {
  LinearInput kind = LinearInput::kFloat32;
  void* values = nullptr;   // [rows][stride]
  int64_t stride = 0;       // elements
  float* scales = nullptr;  // kInt8: [rows][groups]
  int32_t* sums = nullptr;  // kInt8: [rows][groups], of the codes
};

// Rows [begin, end) of x, for LinearX of another kind.
struct LinearInputSlice {
  const float* x;  // [rows, in_features]
  int in_features;
  int begin;
  int end;
  LinearX to;
};

// Panels [panel_begin, panel_end) of y = x W^T (+ bias) (+ y) for all rows of x, which are the
// step's tokens: one worker's share.
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

}  // namespace diffserve
