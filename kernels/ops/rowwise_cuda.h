// The row-wise operations (rowwise.h has their meaning) on the device. The residual stream is
// float32; what the next matrix product reads is bfloat16, as bits in uint16_t, rounded to nearest
// even. All pointers are device memory, row-major, without gaps.
//
// *Invariants*: a row's result is one fixed chain of float32 operations that depends on the width
// and the alignment of the pointers alone, not on the other rows or how many there are. Nothing is
// allocated and nothing waits: each function queues one kernel on the stream and returns what the
// launch itself reported. Zero rows queue nothing.
//
// A width that is a multiple of 8 with 16-byte aligned pointers takes 16-byte accesses; everything
// else is correct and slower.
#pragma once

#include <cstdint>

#include "kernels/base/cuda/stream.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"

namespace diffserve::cuda {

// With s = source_rows[r], or r: residual[s] += add[s], if given; out[r] = residual[s] /
// sqrt(mean(residual[s]^2) + eps) * weight.
struct RmsNormArgs {
  float* residual = nullptr;      // [rows of the batch, width]; written only where `add` is given
  const uint16_t* add = nullptr;  // bfloat16 [rows, width], or nullptr
  const int32_t* source_rows = nullptr;  // [rows], or nullptr for all in order; REQUIRES: add ==
                                         // nullptr
  const float* weight = nullptr;         // [width]
  uint16_t* out = nullptr;               // bfloat16 [rows, width]
  int rows = 0;
  int width = 0;
  float eps = 0;
};
Status RmsNorm(const RmsNormArgs& args, const Stream& stream);

// out[r][i] = silu(x[r][i]) * x[r][width + i].
struct SiluMulArgs {
  const uint16_t* x = nullptr;  // bfloat16 [rows, 2 * width]
  uint16_t* out = nullptr;      // bfloat16 [rows, width]
  int rows = 0;
  int width = 0;
};
Status SiluMul(const SiluMulArgs& args, const Stream& stream);

// out[r][i] = PN(x[r][0, width))[i] * x[r][width + i].
struct PolyNormMulArgs {
  const uint16_t* x = nullptr;  // bfloat16 [rows, 2 * width]
  uint16_t* out = nullptr;      // bfloat16 [rows, width]
  int rows = 0;
  int width = 0;
  float weight[3] = {};  // cubic, square, linear
  float bias = 0;
  float eps = 1e-6f;
};
Status PolyNormMul(const PolyNormMulArgs& args, const Stream& stream);

// x = 1 / (1 + exp(-x)), in place, each element on its own: the per-token lambdas, which stay
// float32.
struct SigmoidArgs {
  float* x = nullptr;  // [count]
  int64_t count = 0;
};
Status Sigmoid(const SigmoidArgs& args, const Stream& stream);

// out[r] = table[token of row r]. REQUIRES: tokens are below vocab (the server checks token ids);
// dtype is kFloat32 or kBFloat16.
struct EmbeddingLookupArgs {
  const void* table = nullptr;  // [vocab, width]
  DType dtype = DType::kBFloat16;
  const int32_t* tokens = nullptr;  // [rows]; -1 - i: drawn[i * drawn_stride]
  float* out = nullptr;             // [rows, width]
  int rows = 0;
  int width = 0;
  const int32_t* drawn = nullptr;  // what an earlier step drew
  int drawn_stride = 1;            // elements
};
Status EmbeddingLookup(const EmbeddingLookupArgs& args, const Stream& stream);

}  // namespace diffserve::cuda
