// SPDX-License-Identifier: Apache-2.0
// The Hopper prefill kernels (diff_prefill_sm90a.cuh): which warps fetch and which compute, and a
// thread block's way through its tiles.
#pragma once

#include "kernels/attention/diff_prefill_sm90a_finish.cuh"

namespace diffserve::cuda {

template <typename Shape, bool kQuantised>
__device__ __forceinline__ void ComputeTiles(const AttentionLaunch& call,
                                             const PageRing<Shape>& ring, int warpgroup) {
  PrefillWarpgroup<Shape, kQuantised> state;
  state.warpgroup = warpgroup;
  RingPosition at;
  for (int turn = 0;; ++turn) {
    {
      const PrefillWork work = PrefillWorkOf(call, turn);
      if (work.item < 0) return;
      const QueryTile part = state.Part(call, PrefillTileOf(call, work));
      state.FindPlace();
      state.Begin(call, ring, part);
      if constexpr (kQuantised) {
        if (call.logits.needs_row()) {
          state.FindExtents(call, ring, part, at);
          state.SkipPages(ring, NumPages(PrefillTileOf(call, work)) - NumPages(part), at);
        }
      }
      state.StreamPages(call, ring, part, at);
    }
    // Found again: that costs less than registers that hold it while the pages stream by.
    const QueryTile tile = PrefillTileOf(call, PrefillWorkOf(call, turn));
    const QueryTile part = state.Part(call, tile);
    state.FindPlace();
    state.SkipPages(ring, NumPages(tile) - NumPages(part), at);
    state.Finish(call, ring, part);
  }
}

template <typename Shape, bool kQuantised>
__device__ __forceinline__ void HopperPrefillTiles(const AttentionLaunch& call) {
  const PageRing<Shape> ring = {SharedAddress(DynamicShared()), call.num_stages};
  if (threadIdx.x == 0) ring.Init();
  __syncthreads();
  // The shuffle shows the compiler that it is warp-uniform.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= 4) {
    IncreaseRegisters<Shape::kComputeRegisters>();
    return ComputeTiles<Shape, kQuantised>(call, ring, warp / 4 - 1);
  }
  DecreaseRegisters<Shape::kFetchRegisters>();
  if (warp == 0) FetchPages<Shape, kQuantised>(call, ring, static_cast<int>(threadIdx.x));
}

template <int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kHopperThreads, 1)
    DiffPrefillSm90aKernel(const __grid_constant__ AttentionLaunch call) {
  HopperPrefillTiles<HopperShape<kHeadDim, kVDim, kKMaps>, false>(call);
}

template <int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kHopperThreads, 1)
    DiffPrefillSm90aQuantisedKernel(const __grid_constant__ AttentionLaunch call) {
  HopperPrefillTiles<HopperShape<kHeadDim, kVDim, kKMaps>, true>(call);
}

}  // namespace diffserve::cuda
