// SPDX-License-Identifier: Apache-2.0
// Products with quantised weights on a device, as far as cuBLASLt leaves them to others: int8 and
// int4 weights become bfloat16 before it, activations become fp8 codes, and results are finished
// after it. Few tokens multiply by the codes (few_rows_cuda.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/cuda/stream.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/ops/weight_format.h"

namespace diffserve::cuda {

// Device memory. REQUIRES: in_features is a multiple of 8, and pointers are 16-byte aligned.
struct QuantizedMatrix {
  WeightFormat format = WeightFormat::kInt8;
  // kInt8, kInt4: [row tiles][groups][TileBytes]; kFp8E4M3: [Fp8Padded(out)][Fp8Padded(in)];
  // kBFloat16: [out_features][in_features]
  const void* codes = nullptr;
  const float* scale = nullptr;  // kInt8, kFp8E4M3: [out_features]
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

  // The same for at most `count` tokens from `begin` on.
  QuantizedProduct Tokens(int begin, int count) const {
    QuantizedProduct part = *this;
    part.num_tokens = std::min(count, num_tokens - begin);
    part.x += begin * x_stride;
    part.y = static_cast<std::byte*>(y) + static_cast<size_t>(begin) *
                                              static_cast<size_t>(weight.out_features) *
                                              SizeOf(y_dtype);
    return part;
  }
};

// Writes rows [first, first + num_rows) of int8 or int4 weights, rounded to bfloat16, to `to`:
// [num_rows, in_features]. REQUIRES: first is a multiple of kTileRows.
Status WidenWeights(const QuantizedMatrix& weight, int first, int num_rows, BFloat16* to,
                    const Stream& stream);

// Multiplies by int8 or int4 codes, which become bfloat16 on the way to wgmma. False, and nothing
// is queued: the calling thread's device has no such kernel; Hopper has one for every shape. int8
// codes are exact and scales act on sums; int4 codes are times their scales, rounded to bfloat16.
//
// With device memory for `part_sums`, a product of few tokens and output features is computed in
// parts of in_features, as many as there is memory and work for.
//
// *Invariants*: an element's sum is one chain of wgmma over in_features, 16 at a time in ascending
// order, from 0. Then in float32: times the scale that there is, + bias, + y if it accumulates;
// then it is rounded to y's type once. So without part_sums a token's bits depend neither on the
// other tokens nor on their number. Each part has such a chain times the scale; parts are added in
// ascending order, and how many there are depends on the shape. A NaN or infinity in x or in a
// weight reaches every output that has it as a factor, and no other.
Result<bool> MultiplyCodes(const QuantizedProduct& product, const Stream& stream,
                           std::span<float> part_sums = {});

// Zeros fill rows and columns up to a multiple of 16, for cuBLASLt.
constexpr int Fp8Padded(int features) { return (features + 15) / 16 * 16; }

// Each token's x becomes codes [num_tokens, Fp8Padded(in_features)] and a scale [num_tokens], as
// Fp8WeightCodec does.
Status QuantizeToFp8(const QuantizedProduct& product, uint8_t* codes, float* scale,
                     const Stream& stream);

// Sums of products in float32, of features [first, first + num_features).
struct ProductSums {
  const float* sums = nullptr;         // [num_parts, num_tokens, stride]
  int num_parts = 1;                   // to be added in ascending order
  const float* token_scale = nullptr;  // [num_tokens], or nullptr: all 1
  int first = 0;
  int num_features = 0;
  int64_t stride = 0;  // elements
};

// y of these features: sums times the scales that there are, plus bias and y as product says, and
// then rounded to y's type once.
Status FinishSums(const QuantizedProduct& product, const ProductSums& sums, const Stream& stream);

}  // namespace diffserve::cuda
