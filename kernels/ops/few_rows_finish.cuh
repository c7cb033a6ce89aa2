// SPDX-License-Identifier: Apache-2.0
// The end of a pass of FewRowsKernel: from the sums of the parts to y.
#pragma once

#include "kernels/ops/few_rows.cuh"

namespace diffserve::cuda {

constexpr int kSumRows = 2 * kStripRows;  // output features of a worker's tile

// The sum of 1, 2, 4 or 8 numbers in the order of the contract.
__device__ __forceinline__ float TreeSum(const float* values, int stride, int count) {
  const auto pair = [=](int i) { return values[i * stride] + values[(i + 1) * stride]; };
  if (count == 1) return values[0];
  float sum = pair(0);
  if (count >= 4) sum += pair(2);
  if (count == 8) sum += pair(4) + pair(6);
  return sum;
}

// A finished sum of an output feature, from the tree's.
template <typename Pieces>
__device__ __forceinline__ float Scaled(const FewRowsProduct& product, int feature, float sum) {
  sum *= Pieces::kUnit;
  if constexpr (Pieces::kScalesRows) sum = MulRounded(sum, product.scale[feature]);
  return sum;
}

__device__ __forceinline__ float BiasOf(const FewRowsProduct& product, int feature) {
  if (product.bias == nullptr) return 0.0f;
  return product.y_dtype == DType::kFloat32
             ? static_cast<const float*>(product.bias)[feature]
             : BFloat16ToFloat(static_cast<const BFloat16*>(product.bias)[feature]);
}

__device__ __forceinline__ void StoreSum(const FewRowsProduct& product, int token, int feature,
                                         float sum) {
  const int64_t at = static_cast<int64_t>(token) * product.out_features + feature;
  if (product.bias != nullptr) sum += BiasOf(product, feature);
  if (product.y_dtype == DType::kFloat32) {
    float* y = static_cast<float*>(product.y) + at;
    *y = product.accumulate ? sum + *y : sum;
  } else {
    BFloat16* y = static_cast<BFloat16*>(product.y) + at;
    *y = FloatToBFloat16(product.accumulate ? sum + BFloat16ToFloat(*y) : sum);
  }
}

// As SiluMul of the rounded product.
__device__ __forceinline__ void StoreSiluMul(const FewRowsProduct& product, int token, int feature,
                                             float gate, float up) {
  const int width = product.YWidth();
  if (product.bias != nullptr) {
    gate += BiasOf(product, feature);
    up += BiasOf(product, width + feature);
  }
  gate = BFloat16ToFloat(FloatToBFloat16(gate));
  up = BFloat16ToFloat(FloatToBFloat16(up));
  static_cast<BFloat16*>(product.y)[static_cast<int64_t>(token) * width + feature] =
      FloatToBFloat16(gate / (1.0f + expf(-gate)) * up);
}

// Finished sums of a pass: of worker w, token t and row r of its tile, `count` numbers `stride`
// apart from values[(w * worker_stride) + t * token_stride + r] on.
struct PassSums {
  const float* values;
  int worker_stride, token_stride, stride, count;
  __device__ __forceinline__ float At(int worker, int token, int row) const {
    return TreeSum(values + worker * worker_stride + token * token_stride + row, stride, count);
  }
};

// Writes y of the tiles that the block's workers computed in a pass. unit_begin: of each worker,
// and the end.
template <typename Pieces, int kColumns8>
__device__ __forceinline__ void FinishPass(const FewRowsProduct& product, int workers,
                                           const PassSums& sums, const int* unit_begin, int pass,
                                           int first_token, int num_tokens) {
  constexpr int kTokens = 8 * kColumns8;
  const bool is_silu = product.form == FewRowsForm::kSiluMul;
  const int total = workers * kTokens * kSumRows;
  for (int i = static_cast<int>(threadIdx.x); i < total; i += static_cast<int>(blockDim.x)) {
    const int row = i % kSumRows, token = i / kSumRows % kTokens, worker = i / kSumRows / kTokens;
    if (token >= num_tokens) continue;
    const int strip = row / kStripRows, in_strip = row % kStripRows;
    const FewRowsTile tile = TileOf(product, unit_begin[worker] + pass * product.UnitsOfTile(),
                                    unit_begin[worker + 1]);
    if (in_strip >= (strip == 0 ? tile.count[0] : tile.count[1])) continue;
    const int feature = tile.row + row;
    if (!is_silu) {
      StoreSum(product, first_token + token, feature,
               Scaled<Pieces>(product, feature, sums.At(worker, token, row)));
    } else if (strip == 0) {
      StoreSiluMul(
          product, first_token + token, feature,
          Scaled<Pieces>(product, feature, sums.At(worker, token, row)),
          Scaled<Pieces>(product, tile.second + feature, sums.At(worker, token, row + kStripRows)));
    }
  }
}

}  // namespace diffserve::cuda
