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
  WeightFormat format = WeightFormat::kInt8;  // or kInt4
  const void* tiles = nullptr;                // [row tiles][groups][TileBytes]
  const float* scale = nullptr;               // kInt8: [out_features]
  int in_features = 0;
  int out_features = 0;
};

// As MatrixProduct's (matrix_library.h).
struct QuantizedProduct {
  QuantizedMatrix weight;
  const BFloat16* x = nullptr;  // [num_tokens, in_features]
  int num_tokens = 0;
  void* y = nullptr;                 // [num_tokens, out_features]
  DType y_dtype = DType::kBFloat16;  // or kFloat32
  const void* bias = nullptr;        // [out_features] of y_dtype, or nullptr
  bool accumulate = false;
};

// For few tokens: reads the weights once per 32 of them.
Status LinearQuantized(const QuantizedProduct& product, const Stream& stream);

// Writes rows [first, first + num_rows) of the weights, rounded to bfloat16, to `to`: [num_rows,
// in_features]. REQUIRES: first is a multiple of 16.
Status WidenWeights(const QuantizedMatrix& weight, int first, int num_rows, BFloat16* to,
                    const Stream& stream);

}  // namespace diffserve::cuda
