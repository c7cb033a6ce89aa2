// SPDX-License-Identifier: Apache-2.0
// The kernel of DiffPrefill for every GPU (sm_80).
//
// A thread block of eight warps takes a tile of query rows and a group, and walks the pages from
// the first to the last that any of them sees. The block shares each page in shared memory (four
// strips per stage). Each warp keeps the softmaxes of its own 16 mma rows: 8 queries and their
// noise queries, or 16 queries without a second map. A thread holds both maps of a query, so the
// end needs no exchange between warps.
//
// Quantised logits whose codes need the whole row take two walks. The first reads only K, for the
// extents of the rows.
#pragma once

#include "kernels/attention/diff_prefill_order.cuh"

namespace diffserve::cuda {

inline constexpr int kPrefillWarps = 8;
inline constexpr int kPrefillThreads = 32 * kPrefillWarps;
inline constexpr int kPrefillStagesMax = 3;
// Bytes after the stages, if logits are quantised: the extents of each warp's rows.
inline constexpr int kPrefillExtentBytes = kPrefillWarps * kMmaRows * sizeof(float);

__device__ __forceinline__ int QueriesPerWarp(const AttentionLaunch& call) {
  return call.finish.has_second_map ? 8 : kMmaRows;
}

// Normalises, subtracts lambda times map 2, undoes V's transform, applies the sub-norm, scales and
// rounds. Four neighbouring lanes hold a query's columns.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__device__ __forceinline__ void FinishWarp(const AttentionLaunch& call, const QueryTile& tile,
                                           AttentionWarp<Codec, kHeadDim, kVDim, kKMaps>& state) {
  const AttentionFinish& finish = call.finish;
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    inverse[half] = InverseSum(sum);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && finish.has_second_map) break;
    const int query = state.lane / 4 + 8 * half;
    const bool exists = query < tile.num_queries;
    const int index = exists ? tile.first_query + query : tile.first_query;
    const int64_t row = int64_t{tile.sequence.first_row} + index / call.tiling.heads_per_group;
    const int64_t row_head = row * finish.num_q1_heads + tile.group * call.tiling.heads_per_group +
                             index % call.tiling.heads_per_group;
    float inverse2 = 0.0f;
    if (finish.has_second_map && exists) {
      inverse2 = inverse[1] *
                 (finish.lambda_rows != nullptr ? finish.lambda_rows[row_head] : finish.lambda);
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kVDim / 8; ++i) {
#pragma unroll
      for (int j = 2 * half; j < 2 * half + 2; ++j) {
        state.o[i][j] = MulRounded(state.o[i][j], inverse[half]);  // equal maps and lambda 1 give 0
        if (half == 0 && finish.has_second_map)
          state.o[i][j] -= MulRounded(state.o[i][j + 2], inverse2);
        squares += state.o[i][j] * state.o[i][j];
      }
    }
    state.UndoTransform(half);  // keeps the sum of squares
    float factor = finish.out_scale;
    if (finish.has_sub_norm) {
      squares += __shfl_xor_sync(kAllLanes, squares, 1);
      squares += __shfl_xor_sync(kAllLanes, squares, 2);
      factor *= rsqrtf(squares / kVDim + finish.sub_norm_eps);
    }
    if (!exists) continue;
#pragma unroll
    for (int i = 0; i < kVDim / 8; ++i) {
      const int column = state.OutColumn(i);
      float2 weight = make_float2(factor, factor);
      if (finish.sub_norm_weight != nullptr) {
        weight.x *= finish.sub_norm_weight[column];
        weight.y *= finish.sub_norm_weight[column + 1];
      }
      const float2 out = state.Out(i, half);
      *reinterpret_cast<uint32_t*>(finish.out + row_head * kVDim + column) = PackBFloat16(
          out.x * weight.x, out.y * weight.y);
    }
  }
}

// Walks all pages of the tile; `visit` gets each page's address in shared memory and its first
// slot. Warps 0-3 and 4-7 alternate in fetching pages, one strip per warp. Strip: the part that is
// fetched.
template <typename Strip, typename Visit>
__device__ __forceinline__ void StreamPages(const AttentionLaunch& call, const QueryTile& tile,
                                            int warp, int lane, const Visit& visit) {
  const uint32_t shared = SharedAddress(DynamicShared());
  const int num_pages = (tile.end_slot - tile.first_slot + kImagePageSize - 1) / kImagePageSize;
  const int first_page = tile.sequence.first_page + tile.first_slot / kImagePageSize;
  const int first_seen = UnmaskedSlots::Of(call, tile).first_of_any;
  const int ahead = call.num_stages - 1;
  for (int page = -ahead; page < num_pages; ++page) {
    const int next = page + ahead;
    if (next < num_pages && warp / kStripsPerPage == next % 2) {
      const int strip = warp % kStripsPerPage;
      const uint32_t destination = shared + static_cast<uint32_t>(
                                                next % call.num_stages * kStripsPerPage + strip) *
                                                Strip::kBytes;
      Strip::CopyByLanes(destination,
                         ImagePage<Strip>(call.kv, call.batch.pages[first_page + next], tile.group),
                         strip, lane);
    }
    CpAsyncCommit();
    if (page < 0) continue;
    WaitForOldestStage(call.num_stages);
    __syncthreads();
    const int first_slot = tile.first_slot + page * kImagePageSize;
    const uint32_t stage = static_cast<uint32_t>(page % call.num_stages * kStripsPerPage) *
                           Strip::kBytes;
    if constexpr (Strip::kHasV) {
      // The first and the last page contain slots that no row sees, which may hold anything.
      if (first_slot < first_seen || first_slot + kImagePageSize > tile.end_slot) {
        const int slot = first_slot + warp % kStripsPerPage * kStripSlots;
        std::byte* strip = DynamicShared() + stage +
                           static_cast<uint32_t>(warp % kStripsPerPage) * Strip::kBytes;
        if (warp < kStripsPerPage)
          Strip::ClearV(strip, first_seen - slot, tile.end_slot - slot, lane);
        __syncthreads();
      }
    }
    visit(shared + stage, first_slot);
    __syncthreads();
  }
}

// The queries of a tile that one warp has.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
struct PrefillWarp {
  using State = AttentionWarp<Codec, kHeadDim, kVDim, kKMaps>;
  using Strip = typename State::Strip;
  using KStrip = typename State::KStrip;

  const AttentionLaunch& call;
  const QueryTile& tile;
  const QueryTile& part;
  State& state;
  int warp;

  __device__ __forceinline__ void Stream() const {
    const UnmaskedSlots unmasked = UnmaskedSlots::Of(call, part);
    StreamPages<Strip>(call, tile, warp, state.lane, [&](uint32_t page, int first_slot) {
      for (int strip = 0; strip < kStripsPerPage; ++strip) {
        const int slot = first_slot + strip * kStripSlots;
        if (slot >= part.end_slot) break;
        state.Consume(page + static_cast<uint32_t>(strip) * Strip::kBytes, slot,
                      !unmasked.Hold(slot, kStripSlots), call);
      }
    });
  }

  __device__ __forceinline__ RowExtents Extents() const {
    std::byte* begin = DynamicShared() +
                       static_cast<uint32_t>(call.num_stages * kStripsPerPage) * Strip::kBytes;
    return {reinterpret_cast<float*>(begin) + warp * kMmaRows, 1};
  }
  // Over one page's strips, of kStripBytes each.
  template <uint32_t kStripBytes>
  __device__ __forceinline__ void Widen(float (&extents)[2], uint32_t page, int first_slot) const {
    for (int strip = 0; strip < kStripsPerPage; ++strip) {
      const int slot = first_slot + strip * kStripSlots;
      if (slot >= part.end_slot) break;
      state.Widen(extents, page + static_cast<uint32_t>(strip) * kStripBytes, slot, call);
    }
  }
  // Combines what the four lanes of a row hold.
  __device__ __forceinline__ void Publish(const float (&extents)[2]) const {
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float extent = extents[half];
      extent = fmaxf(extent, __shfl_xor_sync(kAllLanes, extent, 1));
      extent = fmaxf(extent, __shfl_xor_sync(kAllLanes, extent, 2));
      if (state.lane % 4 == 0) Extents().Of(state.lane / 4 + 8 * half) = extent;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void StreamQuantised() const {
    const UnmaskedSlots unmasked = UnmaskedSlots::Of(call, part);
    const bool needs_row = call.logits.needs_row();
    if (needs_row) {
      float extents[2] = {call.logits.NoExtent(), call.logits.NoExtent()};
      StreamPages<KStrip>(call, tile, warp, state.lane, [&](uint32_t page, int first_slot) {
        Widen<KStrip::kBytes>(extents, page, first_slot);
      });
      Publish(extents);
    }
    StreamPages<Strip>(call, tile, warp, state.lane, [&](uint32_t page, int first_slot) {
      if (!needs_row) {
        float extents[2] = {call.logits.NoExtent(), call.logits.NoExtent()};
        Widen<Strip::kBytes>(extents, page, first_slot);
        Publish(extents);
      }
      for (int strip = 0; strip < kStripsPerPage; ++strip) {
        const int slot = first_slot + strip * kStripSlots;
        if (slot >= part.end_slot) break;
        state.Consume(page + static_cast<uint32_t>(strip) * Strip::kBytes, slot,
                      !unmasked.Hold(slot, kStripSlots), call, Extents());
      }
    });
  }
};

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, bool kQuantised>
__device__ __forceinline__ void PrefillTiles(const AttentionLaunch& call) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int turn = 0;; ++turn) {
    const PrefillWork work = PrefillWorkOf(call, turn);
    if (work.item < 0) return;
    const QueryTile tile = PrefillTileOf(call, work);
    const QueryTile part = PartOf(call, tile, warp * QueriesPerWarp(call), QueriesPerWarp(call));
    AttentionWarp<Codec, kHeadDim, kVDim, kKMaps> state;
    state.lane = static_cast<int>(threadIdx.x) % 32;
    state.Begin(call, part);
    const PrefillWarp<Codec, kHeadDim, kVDim, kKMaps> own = {call, tile, part, state, warp};
    if constexpr (kQuantised) {
      own.StreamQuantised();
    } else {
      own.Stream();
    }
    FinishWarp<Codec, kHeadDim, kVDim, kKMaps>(call, part, state);
  }
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    DiffPrefillKernel(const __grid_constant__ AttentionLaunch call) {
  PrefillTiles<Codec, kHeadDim, kVDim, kKMaps, false>(call);
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    DiffPrefillQuantisedKernel(const __grid_constant__ AttentionLaunch call) {
  PrefillTiles<Codec, kHeadDim, kVDim, kKMaps, true>(call);
}

}  // namespace diffserve::cuda
