// SPDX-License-Identifier: Apache-2.0
// Products with int8 and int4 weights on a device (weight_tiles.h): activations are bfloat16, codes
// are exact in it, sums are float32. An int8 sum is scaled once, an int4 sum once per group.
//
// *Invariants*: an output element is the sum of kParts parts of the groups, each a chain in
// ascending order. So a token's bits do not depend on the number of tokens.
#pragma once

#include <cstdint>

#include "kernels/base/cuda/stream.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/ops/weight_format.h"

namespace diffserve::cuda {

// Device memory. REQUIRES: in_features is a multiple of 8, and pointers are 16-byte aligned.
struct QuantizedMatrix {
  WeightFormat format = WeightFormat::kInt8;
  // kInt8, kInt4: [row tiles][groups][TileBytes]; kFp8E4M3: [Fp8Padded(out)][Fp8Padded(in)]
  const void* codes = nullptr;
  const float* scale = nullptr;  // but for kInt4: [out_features]
  int in_features = 0;
  int out_features = 0;
};

// As MatrixProduct's (matrix_library.h).
struct QuantizedProduct {
  QuantizedMatrix weight;
  const BFloat16* x = nullptr;  // [num_tokens, in_features]
  int64_t x_stride = 0;         // elements from row to row of x, a multiple of 8
  int num_tokens = 0;
  void* y = nullptr;                 // [num_tokens, out_features]
  DType y_dtype = DType::kBFloat16;  // or kFloat32
  const void* bias = nullptr;        // [out_features] of y_dtype, or nullptr
  bool accumulate = false;
};

// int8 and int4 weights, for few tokens: reads the weights once per 32 of them.
Status LinearQuantized(const QuantizedProduct& product, const Stream& stream);

// Writes rows [first, first + num_rows) of int8 or int4 weights, rounded to bfloat16, to `to`:
// [num_rows, in_features]. REQUIRES: first is a multiple of 16.
Status WidenWeights(const QuantizedMatrix& weight, int first, int num_rows, BFloat16* to,
                    const Stream& stream);

// Zeros fill rows and columns up to a multiple of 16, for cuBLASLt.
constexpr int Fp8Padded(int features) { return (features + 15) / 16 * 16; }

// Each token's x becomes codes [num_tokens, Fp8Padded(in_features)] and a scale [num_tokens], as
// Fp8WeightCodec does.
Status QuantizeToFp8(const QuantizedProduct& product, uint8_t* codes, float* scale,
                     const Stream& stream);

// y of features [first, first + num_features): sums times both scales, plus bias and y as product
// says. `sums`: [num_tokens, Fp8Padded(num_features)] of codes.
Status FinishFp8(const QuantizedProduct& product, const float* token_scale, const float* sums,
                 int first, int num_features, const Stream& stream);

}  // namespace diffserve::cuda
