// SPDX-License-Identifier: Apache-2.0
// Decode's items, and what follows their last strip: the states of a thread block's four warps are
// merged in the order of the warps, and those of a tile's splits by the block that is the last to
// finish one.
#pragma once

#include "kernels/attention/attention_columns.cuh"

namespace diffserve::cuda {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = 32 * kDecodeWarps;
static_assert(kSplitPagesMax <= 32, "a lane for each page of a split");
static_assert(kImagePageSize == kDecodeWarps * kStripSlots,
              "a warp's strips lie at one place of each page");

// Bytes after the rings and the warps' O.
DIFFSERVE_HOST_DEVICE constexpr size_t DecodeControlBytes(int columns) {
  return static_cast<size_t>(kDecodeWarps * columns) * 2 * sizeof(float) + 2 * sizeof(uint32_t);
}

// Shared memory of a block, but for the rings: each warp's O, for the merge; its max and sum; then
// whether the block is the last of its tile, its next item, and what the kernel adds.
template <int kColumns>
struct DecodeShared {
  uint32_t first_o;  // the first warp's
  uint32_t stride;   // from one warp's O to the next's
  uint32_t end;      // of the rings and of O
  __device__ __forceinline__ uint32_t O(int warp) const {
    return first_o + static_cast<uint32_t>(warp) * stride;
  }
  __device__ __forceinline__ uint32_t MaxAndSum() const { return end; }
  __device__ __forceinline__ int* IsLast() const {
    return reinterpret_cast<int*>(DynamicShared() + End()) - 2;
  }
  __device__ __forceinline__ uint32_t* NextWork() const {
    return reinterpret_cast<uint32_t*>(DynamicShared() + End()) - 1;
  }
  __device__ __forceinline__ uint32_t End() const {
    return end + static_cast<uint32_t>(DecodeControlBytes(kColumns));
  }
};

// A barrier of the warps that compute.
__device__ __forceinline__ void MeetWarps() { NamedBarrier(1, kDecodeThreads); }

// A warp's O for the merge: [kColumns][kVDim] floats. Lanes of four even or four odd columns of the
// mma write at the same time, so columns of V are XORed to spread them over the banks.
template <int kVDim>
__device__ __forceinline__ int MergeOffset(int column, int of_v) {
  constexpr int kSpread = kVDim % 32 == 0 ? 3 : 1;
  return column * kVDim + (of_v ^ ((column / 2 & kSpread) * 8));
}

// The states of one column of the mma in shared memory, one per warp.
template <int kVDim, int kColumns>
struct WarpStates {
  std::byte* shared;
  DecodeShared<kColumns> layout;
  int column;
  __device__ __forceinline__ float* MaxAndSum(int warp) const {
    return reinterpret_cast<float*>(shared + layout.MaxAndSum()) + (warp * kColumns + column) * 2;
  }
  __device__ __forceinline__ float Max(int warp) const { return MaxAndSum(warp)[0]; }
  __device__ __forceinline__ float Sum(int warp) const { return MaxAndSum(warp)[1]; }
  __device__ __forceinline__ float2& O(int warp, int of_v) const {
    float* o = reinterpret_cast<float*>(shared + layout.O(warp));
    return *reinterpret_cast<float2*>(o + MergeOffset<kVDim>(column, of_v));
  }
  __device__ __forceinline__ void Set(int warp, const RowState<kVDim>& state, int lane) const {
    if (lane == 0) *reinterpret_cast<float2*>(MaxAndSum(warp)) = make_float2(state.max, state.sum);
#pragma unroll
    for (int pair = 0; pair < RowState<kVDim>::kPairs; ++pair) {
      const int of_v = 2 * lane + 64 * pair;
      if (of_v < kVDim) O(warp, of_v) = state.o[pair];
    }
  }
};

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles, int kSlots>
__device__ __forceinline__ void PublishWarp(
    const DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kTiles, kSlots>& state,
    const DecodeShared<kMmaColumns * kTiles>& layout, int warp, float scale_log2) {
  constexpr int kColumns = kMmaColumns * kTiles;
  using State = DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kTiles, kSlots>;
  std::byte* shared = DynamicShared();
  const int lane = state.lane;
  // Where the first two steps of the lane's first column go. The others lie a constant further.
  float* first[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    first[i / 2][i % 2] = reinterpret_cast<float*>(shared + layout.O(warp)) +
                          MergeOffset<kVDim>(lane % 4 * 2, state.OutColumn(i / 2, i % 2));
  }
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int tile = i / 2;
    const int of_lane = i % 2;
    float sum = state.sum[tile][of_lane];
#pragma unroll
    for (int bits = 4; bits < 32; bits *= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
    if (lane < 4) {
      const int column = warp * kColumns + kMmaColumns * tile + lane * 2 + of_lane;
      reinterpret_cast<float2*>(shared + layout.MaxAndSum())[column] = make_float2(
          state.max[tile][of_lane] * scale_log2, sum);
    }
#pragma unroll
    for (int step = 0; step < kVDim / 16; ++step) {
      const int further = (kMmaColumns * tile + of_lane) * kVDim + step / 2 * 32;
      const auto& o = state.o[step][tile];
      if constexpr (State::kHasPairs) {
        *reinterpret_cast<float2*>(first[step % 2][0] + further) = make_float2(o[of_lane],
                                                                               o[2 + of_lane]);
      } else {
        first[step % 2][0][further] = o[of_lane];
        first[step % 2][1][further] = o[2 + of_lane];
      }
    }
  }
}

// A row's states of all warps, merged in the order of the warps.
template <int kVDim, int kColumns>
__device__ __forceinline__ void MergeWarps(RowState<kVDim> (&maps)[2], int num_maps,
                                           const DecodeShared<kColumns>& layout, int query,
                                           int lane) {
#pragma unroll
  for (int map = 0; map < 2; ++map) {
    maps[map] = {};
    if (map < num_maps) {
      const int column = query + kColumns / 2 * map;
      maps[map] = MergeStates<kVDim>(
          kDecodeWarps, WarpStates<kVDim, kColumns>{DynamicShared(), layout, column}, lane);
    }
  }
}

// Finishes the tile's rows from the warps' states.
template <int kVDim, int kBlock, int kColumns>
__device__ __forceinline__ void FinishTile(const AttentionLaunch& call, const QueryTile& tile,
                                           const DecodeShared<kColumns>& layout, int warp,
                                           int lane) {
  for (int query = warp; query < tile.num_queries; query += kDecodeWarps) {
    const int index = tile.first_query + query;
    const int64_t row = int64_t{tile.sequence.first_row} + index / call.tiling.heads_per_group;
    const int head = tile.group * call.tiling.heads_per_group + index % call.tiling.heads_per_group;
    const auto operands = FinishOperands<kVDim>::Load(call.finish, row, head, lane);
    RowState<kVDim> maps[2];
    MergeWarps<kVDim, kColumns>(maps, call.num_maps(), layout, query, lane);
    FinishRow<kVDim, kBlock>(call.finish, operands, maps[0], maps[1], row, head, lane);
  }
}

// Writes the split's states of the tile's rows.
template <int kVDim, int kColumns>
__device__ __forceinline__ void WritePartials(const AttentionLaunch& call, const QueryTile& tile,
                                              const DecodeShared<kColumns>& layout, int64_t item,
                                              int warp, int lane) {
  for (int query = warp; query < tile.num_queries; query += kDecodeWarps) {
    RowState<kVDim> maps[2];
    MergeWarps<kVDim, kColumns>(maps, call.num_maps(), layout, query, lane);
#pragma unroll
    for (int map = 0; map < 2; ++map) {
      if (map >= call.num_maps()) continue;
      float* partial = call.Partial(item, tile.group, query, map, kVDim);
#pragma unroll
      for (int pair = 0; pair < RowState<kVDim>::kPairs; ++pair) {
        const int column = 2 * lane + 64 * pair;
        if (column < kVDim) *reinterpret_cast<float2*>(partial + column) = maps[map].o[pair];
      }
      if (lane == 0)
        *reinterpret_cast<float2*>(partial + kVDim) = make_float2(maps[map].max, maps[map].sum);
    }
  }
}

// Whether all other splits' partials of the tile are written too. Called by all threads, once per
// split, after its partials are written: true in one thread block.
template <int kColumns>
__device__ __forceinline__ bool IsLastOfTile(const AttentionLaunch& call, const QueryTile& tile,
                                             int64_t first_item, int num_splits,
                                             const DecodeShared<kColumns>& layout) {
  int* const is_last = layout.IsLast();
  MeetWarps();
  if (threadIdx.x == 0) {
    const auto last = static_cast<uint32_t>(num_splits - 1);
    uint32_t* const counter = call.counters + 1 + first_item * call.num_groups + tile.group;
    *is_last = CountAndPublish(counter, last) == last ? 1 : 0;
  }
  MeetWarps();
  return *is_last != 0;
}

// Merges the splits of each of the tile's rows: every warp a quarter of them, which then counts as
// the warp's state. The order depends only on the number of the row's splits.
template <int kVDim, int kMaps, int kColumns>
__device__ __forceinline__ void MergeTile(const AttentionLaunch& call, const QueryTile& tile,
                                          const DecodeShared<kColumns>& layout,
                                          int64_t item_of_split_0, int warp, int lane) {
  for (int query = 0; query < tile.num_queries; ++query) {
    const SplitRange splits = call.tiling.SplitsOfRow(
        tile.sequence, (tile.first_query + query) / call.tiling.heads_per_group);
    const int64_t item = item_of_split_0 + splits.first;
    const float* const first = call.Partial(item, tile.group, query, 0, kVDim);
    const SplitStates states = {first, call.Partial(item + 1, tile.group, query, 0, kVDim) - first,
                                kVDim + 2, kVDim};
    RowState<kVDim> maps[kMaps];
    MergeSplits<kVDim, kMaps>(maps, splits.count * warp / kDecodeWarps,
                              splits.count * (warp + 1) / kDecodeWarps, states, lane);
#pragma unroll
    for (int map = 0; map < kMaps; ++map) {
      const int column = query + kColumns / 2 * map;
      WarpStates<kVDim, kColumns>{DynamicShared(), layout, column}.Set(warp, maps[map], lane);
    }
  }
  MeetWarps();
}

// An item and a group, and what its first copies need.
struct DecodeWork {
  int64_t item;
  QueryTile tile;
  int32_t page_of_lane;  // of the split; a lane for each page

  // REQUIRES: number < planned.count.
  __device__ __forceinline__ static DecodeWork Load(const AttentionLaunch& call,
                                                    const PlannedWork& planned, uint32_t number,
                                                    int lane) {
    const auto num_groups = static_cast<uint32_t>(call.num_groups);
    DecodeWork work = {number / num_groups, {}, 0};
    work.tile = QueryTileOf(call, planned.items[work.item], static_cast<int>(number % num_groups));
    const int first_page = work.tile.first_slot / kImagePageSize;
    const int num_pages = (work.tile.end_slot + kImagePageSize - 1) / kImagePageSize - first_page;
    if (lane < num_pages)
      work.page_of_lane = call.batch.pages[work.tile.sequence.first_page + first_page + lane];
    return work;
  }
};

// After the last strip of item `index`, by the warps that compute. A tile with one split is
// finished; of several splits' thread blocks the last one merges them.
template <int kVDim, int kKMaps, int kBlock, int kColumns>
__device__ __forceinline__ void EndItem(const AttentionLaunch& call, const AttentionItem* items,
                                        int64_t index, int group,
                                        const DecodeShared<kColumns>& layout, int warp, int lane) {
  // Read again: that costs less than registers that hold it while the strips stream by.
  const AttentionItem item = items[index];
  const QueryTile tile = QueryTileOf(call, item, group);
  const SplitRange splits = call.tiling.SplitsOfTile(tile.sequence, item.tile);
  if (splits.count > 1) {
    WritePartials<kVDim, kColumns>(call, tile, layout, index, warp, lane);
    const int64_t item_of_split_0 = index - item.first_slot / call.tiling.SplitSlots(tile.sequence);
    if (!IsLastOfTile(call, tile, item_of_split_0 + splits.first, splits.count, layout)) return;
    if (kKMaps == 2 || call.finish.has_second_map) {
      MergeTile<kVDim, 2, kColumns>(call, tile, layout, item_of_split_0, warp, lane);
    } else {
      MergeTile<kVDim, 1, kColumns>(call, tile, layout, item_of_split_0, warp, lane);
    }
  }
  FinishTile<kVDim, kBlock, kColumns>(call, tile, layout, warp, lane);
}

}  // namespace diffserve::cuda
