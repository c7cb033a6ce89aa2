// SPDX-License-Identifier: Apache-2.0
// How the attention kernels turn finished softmaxes into output: merge those of one row over
// disjoint slots in a fixed order, normalise both maps, subtract, undo V's transform, sub-norm,
// scale, round to bf16. One warp per row; lane l holds columns 2 l and 2 l + 1 of every 64.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention/hadamard.cuh"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kMinusInfinity = -__builtin_huge_valf();

// The softmax of one row and map over some of the slots: the maximum score, and the sums of
// p = exp2(score - max) and of p V. An empty one holds -infinity, 0, 0.
template <int kVDim>
struct RowState {
  static constexpr int kPairs = (kVDim + 63) / 64;
  float max;  // of score * scale * log2(e)
  float sum;
  float2 o[kPairs];
};

// Avoids exp2(-inf + inf) for a row that has seen no slot.
__device__ __forceinline__ float FiniteMax(float max) { return max == kMinusInfinity ? 0.0f : max; }

// Source provides Max(i), Sum(i) and O(i, column) of the i-th state.
template <int kVDim, typename Source>
__device__ __forceinline__ RowState<kVDim> MergeStates(int count, const Source& source, int lane) {
  RowState<kVDim> merged = {kMinusInfinity, 0.0f, {}};
  for (int i = 0; i < count; ++i) merged.max = fmaxf(merged.max, source.Max(i));
  const float max = FiniteMax(merged.max);
  for (int i = 0; i < count; ++i) {
    const float weight = Exp2(source.Max(i) - max);
    merged.sum += weight * source.Sum(i);
#pragma unroll
    for (int pair = 0; pair < RowState<kVDim>::kPairs; ++pair) {
      const int column = 2 * lane + 64 * pair;
      if (column < kVDim) {
        const float2 o = source.O(i, column);
        merged.o[pair].x += weight * o.x;
        merged.o[pair].y += weight * o.y;
      }
    }
  }
  return merged;
}

// One row's states in partial results (AttentionLaunch::partials), one per split, map after map.
struct SplitStates {
  const float* first;
  int64_t split_stride;
  int map_stride;
  int v_dim;
  __device__ __forceinline__ const float* Of(int split, int map) const {
    return first + split * split_stride + map * map_stride;
  }
  __device__ __forceinline__ float2 MaxAndSum(int split, int map) const {
    return LoadPastL1(Of(split, map) + v_dim);
  }
  __device__ __forceinline__ float2 O(int split, int map, int column) const {
    return LoadPastL1(Of(split, map) + column);
  }
};

// Merges splits [begin, end) of both maps in order. Several splits are loaded before the first is
// added, since a load takes longer than all that is done with it.
template <int kVDim, int kMaps>
__device__ __forceinline__ void MergeSplits(RowState<kVDim> (&merged)[kMaps], int begin, int end,
                                            const SplitStates& states, int lane) {
  constexpr int kPairs = RowState<kVDim>::kPairs;
  constexpr int kAtOnce = kPairs > 4 ? 2 : kPairs > 2 ? 4 : 8;
#pragma unroll
  for (int map = 0; map < kMaps; ++map) merged[map] = {kMinusInfinity, 0.0f, {}};
  for (int first = begin; first < end; first += kAtOnce) {
    float2 max_and_sum[kMaps][kAtOnce];
    float2 o[kMaps][kAtOnce][kPairs];
#pragma unroll
    for (int i = 0; i < kMaps * kAtOnce; ++i) {
      const int map = i % kMaps;
      const int split = min(first + i / kMaps, end - 1);
      max_and_sum[map][i / kMaps] = states.MaxAndSum(split, map);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int column = 2 * lane + 64 * pair;
        o[map][i / kMaps][pair] = column < kVDim ? states.O(split, map, column)
                                                 : make_float2(0.0f, 0.0f);
      }
    }
#pragma unroll
    for (int map = 0; map < kMaps; ++map) {
      RowState<kVDim>& sums = merged[map];
      float max = sums.max;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) max = fmaxf(max, max_and_sum[map][i].x);
      const float rescale = Exp2(sums.max - FiniteMax(max));
      sums.max = max;
      sums.sum *= rescale;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        sums.o[pair].x *= rescale;
        sums.o[pair].y *= rescale;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = first + i < end ? Exp2(max_and_sum[map][i].x - FiniteMax(max)) : 0.0f;
        sums.sum += weight * max_and_sum[map][i].y;
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          sums.o[pair].x += weight * o[map][i][pair].x;
          sums.o[pair].y += weight * o[map][i][pair].y;
        }
      }
    }
  }
}

struct AttentionFinish {
  uint16_t* out;  // bf16 [rows, num_q1_heads * v_dim]
  int num_q1_heads;
  bool has_second_map;
  float lambda;
  const float* lambda_rows;  // [rows, num_q1_heads]; nullptr: `lambda` holds for all rows
  bool has_sub_norm;
  float sub_norm_eps;
  const float* sub_norm_weight;  // [v_dim]; nullptr: none
  float out_scale;
};

// A sum of 0 (no slot attended to) gives 0; a NaN stays a NaN.
__device__ __forceinline__ float InverseSum(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

// Transforms each kBlock columns of a row.
template <int kBlock, int kPairs>
__device__ __forceinline__ void TransformRow(float2 (&o)[kPairs], int lane) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    HadamardPair(o[pair].x, o[pair].y);
#pragma unroll
    for (int bit = 1; bit < kBlock / 2 && bit < 32; bit *= 2) {
      HadamardLanes(o[pair].x, lane, bit);
      HadamardLanes(o[pair].y, lane, bit);
    }
  }
#pragma unroll
  for (int bit = 1; bit < kBlock / 64; bit *= 2) {
#pragma unroll
    for (int pair = 0; pair + bit < kPairs; ++pair) {
      if ((pair & bit) != 0) continue;
      HadamardPair(o[pair].x, o[pair + bit].x);
      HadamardPair(o[pair].y, o[pair + bit].y);
    }
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    o[pair].x *= HadamardFactor(kBlock);
    o[pair].y *= HadamardFactor(kBlock);
  }
}

// What a row's finish reads besides its softmaxes. It is loaded before they are merged: a load
// after the first store to `out` would wait, since the compiler must expect it to read what was
// stored.
template <int kVDim>
struct FinishOperands {
  static constexpr int kPairs = RowState<kVDim>::kPairs;
  float lambda;
  float2 weight[kPairs];  // sub-norm's

  __device__ __forceinline__ static FinishOperands Load(const AttentionFinish& finish, int64_t row,
                                                        int head, int lane) {
    FinishOperands loaded = {0.0f, {}};
    if (finish.has_second_map) {
      loaded.lambda = finish.lambda_rows != nullptr
                          ? finish.lambda_rows[row * finish.num_q1_heads + head]
                          : finish.lambda;
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int column = 2 * lane + 64 * pair;
      loaded.weight[pair] = make_float2(1.0f, 1.0f);
      if (finish.sub_norm_weight == nullptr || column >= kVDim) continue;
      loaded.weight[pair].x = finish.sub_norm_weight[column];
      loaded.weight[pair].y = finish.sub_norm_weight[column + 1];
    }
    return loaded;
  }
};

// Stage 4: sub-norm, scale. Takes both maps, normalised and subtracted. One warp. kBlock:
// kOutBlock.
template <int kVDim, int kBlock>
__device__ __forceinline__ void FinishRow(const AttentionFinish& finish,
                                          const FinishOperands<kVDim>& operands,
                                          const RowState<kVDim>& map1, const RowState<kVDim>& map2,
                                          int64_t row, int head, int lane) {
  constexpr int kPairs = RowState<kVDim>::kPairs;
  const int64_t row_head = row * finish.num_q1_heads + head;
  const float inverse1 = InverseSum(map1.sum);
  const float inverse2 = finish.has_second_map ? operands.lambda * InverseSum(map2.sum) : 0.0f;
  float2 o[kPairs];
  float squares = 0.0f;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    o[pair].x = MulRounded(map1.o[pair].x, inverse1);
    o[pair].y = MulRounded(map1.o[pair].y, inverse1);
    if (finish.has_second_map) {
      o[pair].x -= MulRounded(map2.o[pair].x, inverse2);
      o[pair].y -= MulRounded(map2.o[pair].y, inverse2);
    }
    squares += o[pair].x * o[pair].x + o[pair].y * o[pair].y;  // columns beyond v_dim are 0
  }
  if constexpr (kBlock > 1) TransformRow<kBlock>(o, lane);  // keeps the sum of squares
  float factor = finish.out_scale;
  if (finish.has_sub_norm) {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) squares += __shfl_xor_sync(kAllLanes, squares, bits);
    factor *= rsqrtf(squares / kVDim + finish.sub_norm_eps);
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int column = 2 * lane + 64 * pair;
    if (column >= kVDim) continue;
    const float2 weight = operands.weight[pair];
    *reinterpret_cast<uint32_t*>(finish.out + row_head * kVDim + column) = PackBFloat16(
        o[pair].x * (factor * weight.x), o[pair].y * (factor * weight.y));
  }
}

}  // namespace diffserve::cuda
