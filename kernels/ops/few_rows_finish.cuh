// SPDX-License-Identifier: Apache-2.0
// The end of a pass of FewRowsKernel: from the sums of the parts to y.
#pragma once

#include "kernels/ops/few_rows.cuh"
#include "kernels/ops/rope_append.cuh"

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

// What kAppend needs of the batch: each token's place, with a slot of -1 for padding.
struct FewRowsAppend {
  const RopeCall& call;
  const AppendPlace* places;
};

// A number of q or, after the rotation, of K or V. Who begins a page clears what no row fills.
__device__ __forceinline__ void AppendNumber(const RopeCall& call, const AppendPlace& place,
                                             int64_t row, int feature, float value) {
  const KvFormat image = call.kv.format.As<BFloat16Codec, KvArrangement::kImage>();
  const auto bits = static_cast<uint16_t>(PackBFloat16(value, 0.0f));
  const int q_width = call.num_q_heads * image.head_dim;
  if (feature < q_width) {
    call.q[row * q_width + feature] = bits;
    return;
  }
  const int of_k = feature - q_width;
  const int of_v = of_k - image.k_maps * image.num_groups * image.head_dim;
  const int k_head = of_k / image.head_dim, map = k_head / image.num_groups;
  const int group = of_v < 0 ? k_head % image.num_groups : of_v / image.v_dim;
  const int dim = of_v < 0 ? of_k % image.head_dim : of_v % image.v_dim;
  uint16_t* const page = ImagePage<BFloat16Codec>(call, place.page_id, group);
  const auto offset = [&](int slot) {
    return of_v < 0 ? image.KOffset(map, dim, slot) : image.VOffset(dim, slot);
  };
  page[offset(place.slot)] = bits;
  if (place.slot != 0) return;
  for (int slot = place.filled; slot < image.page_size; ++slot) page[offset(slot)] = 0;
}

// Two features of a token, rounded as a product is stored, and rotated if they are a pair.
__device__ __forceinline__ void AppendPair(const RopeCall& call, const AppendPlace& place,
                                           int64_t row, const int (&feature)[2],
                                           float (&value)[2]) {
  const int head_dim = call.kv.format.head_dim;
  const int k_heads = call.has_kv ? call.kv.format.k_maps * call.kv.format.num_groups : 0;
#pragma unroll
  for (float& x : value) x = BFloat16ToFloat(FloatToBFloat16(x));
  if (call.is_rotated && feature[0] < (call.num_q_heads + k_heads) * head_dim) {
    const int dim = feature[0] % head_dim;
    const int64_t at = int64_t{place.position} * (head_dim / 2) +
                       (call.is_interleaved ? dim / 2 : dim);
    Rotate(value[0], value[1], call.cos[at], call.sin[at]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) AppendNumber(call, place, row, feature[i], value[i]);
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

// Writes y, or q and pages, of the tiles that the block's workers computed in a pass. unit_begin:
// of each worker, and the end.
template <typename Pieces, int kColumns8>
__device__ __forceinline__ void FinishPass(const FewRowsProduct& product,
                                           const FewRowsAppend& append, int workers,
                                           const PassSums& sums, const int* unit_begin, int pass,
                                           int first_token, int num_tokens) {
  constexpr int kTokens = 8 * kColumns8;
  const FewRowsTiles tiles = product.Tiles();
  const int total = workers * kTokens * kSumRows;
  for (int i = static_cast<int>(threadIdx.x); i < total; i += static_cast<int>(blockDim.x)) {
    const int row = i % kSumRows, token = i / kSumRows % kTokens, worker = i / kSumRows / kTokens;
    if (token >= num_tokens) continue;
    const int strip = row / kStripRows, in_strip = row % kStripRows;
    const FewRowsTile tile = TileOf(tiles, unit_begin[worker] + pass * tiles.UnitsOfTile(),
                                    unit_begin[worker + 1]);
    if (in_strip >= (strip == 0 ? tile.count[0] : tile.count[1])) continue;
    const auto sum_of = [&](int of_row, int feature) {
      return Scaled<Pieces>(product, feature, sums.At(worker, token, of_row));
    };
    const int feature = tile.row + row;
    if (tiles.form == FewRowsForm::kStore) {
      StoreSum(product, first_token + token, feature, sum_of(row, feature));
    } else if (strip != 0) {
      continue;
    } else if (tiles.form == FewRowsForm::kSiluMul) {
      StoreSiluMul(product, first_token + token, feature, sum_of(row, feature),
                   sum_of(row + kStripRows, tile.second + feature));
    } else if (append.places[token].slot >= 0) {
      const bool are_neighbours = append.call.is_interleaved;
      int features[2];
      float values[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int of_row = are_neighbours ? 2 * row + k : row + k * kStripRows;
        features[k] = tile.row + of_row % kStripRows + of_row / kStripRows * tile.second;
        values[k] = sum_of(of_row, features[k]);
        if (product.bias != nullptr) values[k] += BiasOf(product, features[k]);
      }
      AppendPair(append.call, append.places[token], product.first_row + first_token + token,
                 features, values);
    }
  }
}

}  // namespace diffserve::cuda
