// SPDX-License-Identifier: Apache-2.0
// How a warpgroup of the Hopper prefill kernel ends a tile: its sums of both maps become rows of
// the output.
#pragma once

#include "kernels/attention/diff_prefill_sm90a.cuh"

namespace diffserve::cuda {

// Stage 4: sub-norm, scale. Takes both maps, normalised and subtracted. First the part in which one
// thread holds both maps; the part that the other warpgroup subtracts is multiplied by lambda.
template <typename Shape, bool kQuantised>
__device__ __forceinline__ void PrefillWarpgroup<Shape, kQuantised>::SubtractMaps(
    const AttentionLaunch& call, const QueryTile& part) {
  const AttentionFinish& finish = call.finish;
  const bool paired = Paired(call);
  float inverse[kOutputs][2];
#pragma unroll
  for (int i = 0; i < 2 * kOutputs; ++i) {
    float total = sum[i / 2][i % 2];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    inverse[i / 2][i % 2] = InverseSum(total);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && paired) break;
    const PrefillRow row = Row(call, part, half, 0);
    float lambda = finish.lambda;
    if (finish.lambda_rows != nullptr)
      lambda = row.exists ? finish.lambda_rows[row.row_head] : 0.0f;
    const float own = Shape::kMapPerWarpgroup && warpgroup == 1 ? lambda * inverse[0][half]
                                                                : inverse[0][half];
    const float other = lambda * inverse[kOutputs - 1][kOutputs == 2 ? half : 1];
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 2; ++i) {
      if (i % 4 / 2 != half) continue;
      o[0][i] = MulRounded(o[0][i], own);  // equal maps and lambda 1 give 0
      if (kOutputs == 2) {
        o[0][i] -= MulRounded(o[kOutputs - 1][i], other);
      } else if (half == 0 && paired) {
        o[0][i] -= MulRounded(o[0][i + 2], other);
      }
    }
  }
}

// Exchanges one half of map 2's columns of each row at a time. A thread reads what the same thread
// of the other warpgroup wrote.
template <typename Shape, bool kQuantised>
__device__ __forceinline__ void PrefillWarpgroup<Shape, kQuantised>::Send(
    const PageRing<Shape>& ring) const {
  auto* mine = reinterpret_cast<float4*>(DynamicShared() + (ring.Exchange() - ring.base)) +
               warp * 32 + lane;
#pragma unroll
  for (int round = 0; round < 2; ++round) {
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 16; ++i) {
      const float* from = o[0] + round * Shape::kVDim / 4 + 4 * i;
      mine[i * kWarpgroupThreads] = float4{from[0], from[1], from[2], from[3]};
    }
    NamedBarrier(kExchangeWritten, 2 * kWarpgroupThreads);
    NamedBarrier(kExchangeRead, 2 * kWarpgroupThreads);
  }
}
template <typename Shape, bool kQuantised>
__device__ __forceinline__ void PrefillWarpgroup<Shape, kQuantised>::SubtractReceived(
    const PageRing<Shape>& ring) {
  const auto* other = reinterpret_cast<const float4*>(DynamicShared() +
                                                      (ring.Exchange() - ring.base)) +
                      warp * 32 + lane;
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    NamedBarrier(kExchangeWritten, 2 * kWarpgroupThreads);
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 16; ++i) {
      float* to = o[0] + round * Shape::kVDim / 4 + 4 * i;
      const float4 values = other[i * kWarpgroupThreads];
      to[0] -= values.x;
      to[1] -= values.y;
      to[2] -= values.z;
      to[3] -= values.w;
    }
    NamedBarrier(kExchangeRead, 2 * kWarpgroupThreads);
  }
}

// Sub-norm, scale, round. Four neighbouring lanes hold a row's columns.
template <typename Shape, bool kQuantised>
__device__ __forceinline__ void PrefillWarpgroup<Shape, kQuantised>::WriteRow(
    const AttentionFinish& finish, const PrefillRow& row, int half) const {
  float factor = finish.out_scale;
  if (finish.has_sub_norm) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < Shape::kVDim / 8; ++i) {
#pragma unroll
      for (int j = 4 * i + 2 * half; j < 4 * i + 2 * half + 2; ++j) squares += o[0][j] * o[0][j];
    }
    squares += __shfl_xor_sync(kAllLanes, squares, 1);
    squares += __shfl_xor_sync(kAllLanes, squares, 2);
    factor *= rsqrtf(squares / Shape::kVDim + finish.sub_norm_eps);
  }
  if (!row.exists) return;
#pragma unroll
  for (int i = 0; i < Shape::kVDim / 8; ++i) {
    const int column = 8 * i + lane % 4 * 2;
    float2 weight = make_float2(factor, factor);
    if (finish.sub_norm_weight != nullptr) {
      weight.x *= finish.sub_norm_weight[column];
      weight.y *= finish.sub_norm_weight[column + 1];
    }
    *reinterpret_cast<uint32_t*>(finish.out + row.row_head * Shape::kVDim + column) = PackBFloat16(
        o[0][4 * i + 2 * half] * weight.x, o[0][4 * i + 2 * half + 1] * weight.y);
  }
}

template <typename Shape, bool kQuantised>
__device__ __forceinline__ void PrefillWarpgroup<Shape, kQuantised>::Finish(
    const AttentionLaunch& call, const PageRing<Shape>& ring, const QueryTile& part) {
  SubtractMaps(call, part);
  if constexpr (Shape::kMapPerWarpgroup) {
    if (warpgroup == 1) return Send(ring);
    SubtractReceived(ring);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && Paired(call)) break;
    WriteRow(call.finish, Row(call, part, half, 0), half);
  }
}

}  // namespace diffserve::cuda
