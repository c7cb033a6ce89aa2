// The kernel of DiffPrefill for every GPU (sm_80).
//
// A thread block of eight warps takes a tile of query rows and a group, and walks the pages from
// slot 0 to the tile's last. The block shares each page in shared memory (four strips a stage);
// each warp keeps the softmaxes of its own 16 mma rows: 8 queries and their noise queries, or 16
// queries without a second map. A thread holds both maps of a query, so the end needs no exchange
// between warps.
#pragma once

#include "kernels/attention/diff_prefill_order.cuh"

namespace diffserve::cuda {

inline constexpr int kPrefillWarps = 8;
inline constexpr int kPrefillThreads = 32 * kPrefillWarps;
inline constexpr int kPrefillStagesMax = 3;
inline constexpr int kStripsPerPage = kImagePageSize / kStripSlots;

__device__ __forceinline__ int QueriesPerWarp(const AttentionLaunch& call) {
  return call.finish.has_second_map ? 8 : kMmaRows;
}

// Normalise, subtract lambda times map 2, sub-norm, scale, round. Four neighbouring lanes hold a
// query's columns.
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
    float factor = finish.out_scale;
    if (finish.has_sub_norm) {
      squares += __shfl_xor_sync(kAllLanes, squares, 1);
      squares += __shfl_xor_sync(kAllLanes, squares, 2);
      factor *= rsqrtf(squares / kVDim + finish.sub_norm_eps);
    }
    if (!exists) continue;
#pragma unroll
    for (int i = 0; i < kVDim / 8; ++i) {
      const int column = 8 * i + state.lane % 4 * 2;
      float2 weight = make_float2(factor, factor);
      if (finish.sub_norm_weight != nullptr) {
        weight.x *= finish.sub_norm_weight[column];
        weight.y *= finish.sub_norm_weight[column + 1];
      }
      *reinterpret_cast<uint32_t*>(finish.out + row_head * kVDim + column) = PackBFloat16(
          state.o[i][2 * half] * weight.x, state.o[i][2 * half + 1] * weight.y);
    }
  }
}

// All pages of the tile. Warps 0-3 and 4-7 fetch every other page, a strip a warp.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__device__ __forceinline__ void StreamPages(const AttentionLaunch& call, const QueryTile& tile,
                                            const QueryTile& part,
                                            AttentionWarp<Codec, kHeadDim, kVDim, kKMaps>& state,
                                            int warp) {
  using Strip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>;
  const int lane = state.lane;
  const uint32_t shared = SharedAddress(DynamicShared());
  const int num_pages = (tile.end_slot + kImagePageSize - 1) / kImagePageSize;
  const int unmasked_slots = UnmaskedSlots(call, part);
  const int ahead = call.num_stages - 1;
  for (int page = -ahead; page < num_pages; ++page) {
    const int next = page + ahead;
    if (next < num_pages && warp / kStripsPerPage == next % 2) {
      const int strip = warp % kStripsPerPage;
      const uint32_t destination = shared + static_cast<uint32_t>(
                                                next % call.num_stages * kStripsPerPage + strip) *
                                                Strip::kBytes;
      Strip::CopyByLanes(
          destination,
          ImagePage<Codec>(call.kv, call.batch.pages[tile.sequence.first_page + next], tile.group),
          strip, lane);
    }
    CpAsyncCommit();
    if (page < 0) continue;
    WaitForOldestStage(call.num_stages);
    __syncthreads();
    const int first_slot = page * kImagePageSize;
    const uint32_t stage = static_cast<uint32_t>(page % call.num_stages * kStripsPerPage) *
                           Strip::kBytes;
    if (first_slot + kImagePageSize > tile.end_slot) {  // the last page, whose end may hold
                                                        // anything
      const int slot = first_slot + warp % kStripsPerPage * kStripSlots;
      std::byte* strip = DynamicShared() + stage +
                         static_cast<uint32_t>(warp % kStripsPerPage) * Strip::kBytes;
      if (warp < kStripsPerPage)
        Strip::ClearV(strip, min(max(tile.end_slot - slot, 0), kStripSlots), lane);
      __syncthreads();
    }
    for (int strip = 0; strip < kStripsPerPage; ++strip) {
      const int slot = first_slot + strip * kStripSlots;
      if (slot >= part.end_slot) break;
      state.Consume(shared + stage + static_cast<uint32_t>(strip) * Strip::kBytes, slot,
                    slot + kStripSlots > unmasked_slots, call.scale_log2);
    }
    __syncthreads();
  }
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    DiffPrefillKernel(const __grid_constant__ AttentionLaunch call) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int turn = 0;; ++turn) {
    const PrefillWork work = PrefillWorkOf(call, turn);
    if (work.item < 0) return;
    const QueryTile tile = PrefillTileOf(call, work);
    const QueryTile part = PartOf(call, tile, warp * QueriesPerWarp(call), QueriesPerWarp(call));
    AttentionWarp<Codec, kHeadDim, kVDim, kKMaps> state;
    state.lane = static_cast<int>(threadIdx.x) % 32;
    state.Begin(call, part);
    StreamPages<Codec, kHeadDim, kVDim, kKMaps>(call, tile, part, state, warp);
    FinishWarp<Codec, kHeadDim, kVDim, kKMaps>(call, part, state);
  }
}

}  // namespace diffserve::cuda
