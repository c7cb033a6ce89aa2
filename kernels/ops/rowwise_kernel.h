// What the row-wise kernels of each level are called with: `rows` consecutive rows. Plain data
// only: see simd.h.
#pragma once

namespace diffserve {

struct RmsNormRows {
  const float* x;       // [rows, width]
  const float* weight;  // [width]
  float* out;           // [rows, width]; may be x
  int rows;
  int width;
  float eps;
};

struct SiluMulRows {
  const float* x;  // [rows, 2 * width]: gate | up
  float* out;      // [rows, width]
  int rows;
  int width;
};

struct PolyNormRows {
  const float* x;  // [rows, 2 * width]: gate | up
  float* out;      // [rows, width]
  int rows;
  int width;
  float weight[3];  // cubic, square, linear
  float bias;
  float eps;
};

}  // namespace diffserve
