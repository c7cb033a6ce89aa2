// What the linear kernel of each level is called with, and how packed weights lie in memory. Plain
// data only: see simd.h.
//
// A panel holds P = KernelTable::panel_columns neighbouring output features, zero-padded at the end
// of the matrix:
//   float32:  [in_features][P]
//   bfloat16: [ceil(in_features / 2)][P][2], the last odd element zero
#pragma once

#include <cstdint>

namespace diffserve {

// Panels [panel_begin, panel_end) of y = x W^T (+ bias) for all rows: one worker's share.
struct LinearSlice {
  const void* panels;
  bool is_bf16;
  int out_features;
  int in_features;
  const float* bias;  // [out_features] or nullptr
  const float* x;     // [rows, in_features]
  int rows;
  float* y;  // [rows, out_features], rows y_stride apart
  int64_t y_stride;
  bool accumulate;
  int panel_begin;
  int panel_end;
};

}  // namespace diffserve
