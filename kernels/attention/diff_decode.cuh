// SPDX-License-Identifier: Apache-2.0
// The kernels of DiffDecode (sm_80; with bulk copies sm_90).
//
// A thread block of four warps takes a work item: one tile of query rows, one group, one split of
// 512 to 2,048 slots. Each warp streams its own strips (every fourth 16 slots) through its own ring
// in shared memory, without barriers between warps, and keeps its own softmaxes. At the end they
// are merged in the order of the warps. Quantised logits need their extents first; a separate
// launch computes them (diff_decode_extents.cuh).
#pragma once

#include "kernels/attention/attention_columns.cuh"

namespace diffserve::cuda {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = 32 * kDecodeWarps;
inline constexpr int kDecodeStagesMax = 4;
static_assert(kSplitPagesMax <= 32, "a lane for each page of a split");
static_assert(kImagePageSize == kDecodeWarps * kStripSlots,
              "a warp's strips lie at one place of each page");

// Bytes of one warp's ring. The merge needs room there for `columns` columns of O.
DIFFSERVE_HOST_DEVICE constexpr uint32_t DecodeRingBytes(uint32_t strip_bytes, int v_dim,
                                                         int columns, int num_stages) {
  const uint32_t ring = strip_bytes * static_cast<uint32_t>(num_stages);
  const uint32_t merge = static_cast<uint32_t>(columns * v_dim) * sizeof(float);
  return ring > merge ? ring : merge;
}
DIFFSERVE_HOST_DEVICE constexpr size_t DecodeSharedBytes(uint32_t strip_bytes, int v_dim,
                                                         int columns, int num_stages) {
  return kDecodeWarps * (DecodeRingBytes(strip_bytes, v_dim, columns, num_stages) +
                         static_cast<size_t>(columns) * 2 * sizeof(float) + kDecodeStagesMax * 8) +
         sizeof(uint32_t) * 2;
}
// Bytes after the rings, if logits are quantised: the extent of each row in each page of the split.
inline constexpr size_t kDecodeExtentBytes = 2 * kMmaColumns * kSplitPagesMax * sizeof(float);

// Shared memory of a block: the rings, which the merge reuses; the merge's max and sum; the
// barriers of bulk copies; whether the block is the last of its tile; its next item; the extents.
template <int kColumns>
struct DecodeShared {
  uint32_t ring_bytes;  // per warp
  __device__ __forceinline__ uint32_t Ring(int warp) const {
    return static_cast<uint32_t>(warp) * ring_bytes;
  }
  __device__ __forceinline__ uint32_t MaxAndSum() const { return Ring(kDecodeWarps); }
  __device__ __forceinline__ uint32_t Barrier(int warp, int stage) const {
    return MaxAndSum() + kDecodeWarps * kColumns * 2 * sizeof(float) +
           static_cast<uint32_t>((warp * kDecodeStagesMax + stage) * 8);
  }
  __device__ __forceinline__ int* IsLast() const {
    return reinterpret_cast<int*>(DynamicShared() + Barrier(kDecodeWarps, 0));
  }
  __device__ __forceinline__ uint32_t* NextWork() const {
    return reinterpret_cast<uint32_t*>(DynamicShared() + Barrier(kDecodeWarps, 0)) + 1;
  }
  __device__ __forceinline__ float* Extents() const {
    return reinterpret_cast<float*>(DynamicShared() + Barrier(kDecodeWarps, 1));
  }
};

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
    float* o = reinterpret_cast<float*>(shared + layout.Ring(warp));
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

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles>
__device__ __forceinline__ void PublishWarp(
    const DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kTiles>& state,
    const DecodeShared<kMmaColumns * kTiles>& layout, int warp, float scale_log2) {
  constexpr int kColumns = kMmaColumns * kTiles;
  using State = DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kTiles>;
  std::byte* shared = DynamicShared();
  const int lane = state.lane;
  // Where the first two steps of the lane's first column go. The others lie a constant further.
  float* first[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    first[i / 2][i % 2] = reinterpret_cast<float*>(shared + layout.Ring(warp)) +
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
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto last = static_cast<uint32_t>(num_splits - 1);
    uint32_t* const counter = call.counters + 1 + first_item * call.num_groups + tile.group;
    *is_last = CountAndPublish(counter, last) == last ? 1 : 0;
  }
  __syncthreads();
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
  __syncthreads();
}

// A warp's ring of strips, which runs on from one item to the next: every strip that was asked for
// is waited for. The stages follow one another by comparison, since a division by a number that is
// not known at compile time takes some thirty instructions.
template <typename Strip, bool kBulk>
struct StripRing {
  uint32_t base;      // shared address
  uint32_t barriers;  // shared address, one per stage
  int num_stages;
  int lane;
  int next_to_fill = 0;
  int next_to_read = 0;
  uint32_t parities = 0;  // bit s: parity of the phase that stage s waits for

  __device__ __forceinline__ void MakeBarriers() const {
    if constexpr (kBulk) {
      if (lane == 0) {
#pragma unroll 1
        for (int stage = 0; stage < num_stages; ++stage) BarrierInit(Barrier(stage), 1);
        BarrierInitFence();
      }
      __syncwarp();
    }
  }
  __device__ __forceinline__ void Issue(const typename Strip::Element* page, int index) {
    if constexpr (kBulk) {
      if (ElectedLane()) Strip::CopyInBulk(Stage(next_to_fill), page, index, Barrier(next_to_fill));
    } else {
      Strip::CopyByLanes(Stage(next_to_fill), page, index, lane);
    }
    next_to_fill = After(next_to_fill);
  }
  // Called once per strip, issued or not, so that groups can be counted.
  __device__ __forceinline__ void Commit() const {
    if constexpr (!kBulk) CpAsyncCommit();
  }
  // The shared address of the next strip, once it has arrived.
  __device__ __forceinline__ uint32_t Wait() {
    const int stage = next_to_read;
    next_to_read = After(stage);
    if constexpr (kBulk) {
      BarrierWait(Barrier(stage), parities >> stage & 1);
      parities ^= 1u << stage;
    } else {
      WaitForOldestStage(num_stages);
    }
    __syncwarp();
    return Stage(stage);
  }

 private:
  __device__ __forceinline__ int After(int stage) const {
    return stage + 1 == num_stages ? 0 : stage + 1;
  }
  __device__ __forceinline__ uint32_t Stage(int stage) const {
    return base + static_cast<uint32_t>(stage) * Strip::kBytes;
  }
  __device__ __forceinline__ uint32_t Barrier(int stage) const {
    return barriers + static_cast<uint32_t>(stage * 8);
  }
};

// Reads the extents by which the tile's scores are quantised, one per row and page of the split.
// Called by all threads.
template <int kColumns>
__device__ __forceinline__ void ReadExtents(const AttentionLaunch& call, const QueryTile& tile,
                                            int64_t item, const DecodeShared<kColumns>& layout) {
  constexpr int kOfRow = kDecodeThreads / kColumns;
  const int row = static_cast<int>(threadIdx.x) / kOfRow;
  const int map = call.finish.has_second_map && row >= kColumns / 2 ? 1 : 0;
  const int query = row - kColumns / 2 * map;
  const int split_pages = call.tiling.SplitSlots(tile.sequence) / kImagePageSize;
  const int split_of_item = tile.first_slot / kImagePageSize / split_pages;
  const int tile_index = tile.first_query / call.tiling.rows_per_tile;
  const int first_page = call.tiling.FirstSlot(tile.sequence, tile_index) / kImagePageSize;
  const int num_pages = (tile.num_slots + kImagePageSize - 1) / kImagePageSize;
  const bool needs_row = call.logits.needs_row();
  const int begin = needs_row ? first_page / split_pages : split_of_item;
  const int end = needs_row ? (num_pages + split_pages - 1) / split_pages : split_of_item + 1;
  float* const extents = layout.Extents() + row * kSplitPagesMax;
  float of_row = call.logits.NoExtent();
  for (int page = static_cast<int>(threadIdx.x) % kOfRow; page < split_pages; page += kOfRow) {
    float extent = call.logits.NoExtent();
    for (int split = begin; split < end && query < tile.num_queries; ++split) {
      if (split * split_pages + page >= num_pages) break;
      if (split * split_pages + page < first_page) continue;
      const int64_t other = item + split - split_of_item;
      extent = fmaxf(extent, call.Extents(other, tile.group, query, map)[page]);
    }
    extents[page] = query < tile.num_queries ? extent : 0.0f;
    of_row = fmaxf(of_row, extent);
  }
  if (!needs_row) return;
#pragma unroll
  for (int bits = 1; bits < kOfRow; bits *= 2)
    of_row = fmaxf(of_row, __shfl_xor_sync(kAllLanes, of_row, bits));
  for (int page = static_cast<int>(threadIdx.x) % kOfRow; page < split_pages; page += kOfRow)
    extents[page] = query < tile.num_queries ? of_row : 0.0f;
}

// Asks for a thread block's next item. Thread blocks take the items after their first ones by a
// counter, since some multiprocessors are slower than others. Each takes one number too many, so
// the counter ends at 0. Called once per item by thread 0.
template <int kColumns>
__device__ __forceinline__ void TakeNextWork(const AttentionLaunch& call,
                                             const DecodeShared<kColumns>& layout,
                                             uint32_t num_work) {
  *layout.NextWork() = gridDim.x + CountInTurn(call.counters, num_work - 1);
}

// An item and a group, and what its first copies need.
struct DecodeWork {
  int64_t item;
  QueryTile tile;
  int32_t page_of_lane;  // of the split; a lane for each page

  // REQUIRES: number < the number of items times groups.
  __device__ __forceinline__ static DecodeWork Load(const AttentionLaunch& call, uint32_t number,
                                                    int lane) {
    const auto num_groups = static_cast<uint32_t>(call.num_groups);
    DecodeWork work = {number / num_groups, {}, 0};
    work.tile = QueryTileOf(call, call.plan.items[work.item],
                            static_cast<int>(number % num_groups));
    const int first_page = work.tile.first_slot / kImagePageSize;
    const int num_pages = (work.tile.end_slot + kImagePageSize - 1) / kImagePageSize - first_page;
    if (lane < num_pages)
      work.page_of_lane = call.batch.pages[work.tile.sequence.first_page + first_page + lane];
    return work;
  }
};

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles, bool kBulk,
          bool kQuantised>
__device__ __forceinline__ void StreamStrips(
    const AttentionLaunch& call, const DecodeWork& work, uint32_t num_work,
    DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kTiles>& state,
    StripRing<KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>, kBulk>& ring, int warp,
    const DecodeShared<kMmaColumns * kTiles>& layout) {
  using Strip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>;
  const int lane = state.lane;
  const QueryTile& tile = work.tile;
  // Strip j begins kImagePageSize * j slots later.
  const int first_slot = tile.first_slot + warp * kStripSlots;
  const int num_strips = (tile.end_slot - first_slot + kImagePageSize - 1) /
                         kImagePageSize;  // below 1: none
  const auto issue = [&](int strip) {
    const int page = __shfl_sync(kAllLanes, work.page_of_lane, strip & 31);
    if (strip < num_strips) ring.Issue(ImagePage<Strip>(call.kv, page, tile.group), warp);
    ring.Commit();
  };
  const int ahead = ring.num_stages - 1;
#pragma unroll 1
  for (int strip = 0; strip < ahead; ++strip) issue(strip);

  // While the first strips arrive.
  if (threadIdx.x == 0) TakeNextWork(call, layout, num_work);
  state.Begin(call, tile);
  const UnmaskedSlots unmasked = UnmaskedSlots::Of(call, tile);
  for (int j = 0; j < num_strips; ++j) {
    issue(j + ahead);
    const uint32_t strip = ring.Wait();
    const int slot = first_slot + kImagePageSize * j;
    if (slot < unmasked.first_of_any || slot + kStripSlots > tile.end_slot) {
      std::byte* bytes = DynamicShared() + (strip - SharedAddress(DynamicShared()));
      Strip::ClearV(bytes, unmasked.first_of_any - slot, tile.end_slot - slot, lane);
      if constexpr (kBulk) ProxyFence();  // a later strip's copy may overwrite what was cleared
      __syncwarp();
    }
    const bool masked = !unmasked.Hold(slot, kStripSlots);
    if constexpr (kQuantised) {
      const int page = slot % call.tiling.SplitSlots(tile.sequence) / kImagePageSize;
      state.Consume(strip, slot, masked, call, {layout.Extents() + page, kSplitPagesMax});
    } else {
      state.Consume(strip, slot, masked, call);
    }
    __syncwarp();
  }
}

// After the last strip. A tile with one split is finished; of several splits' thread blocks the
// last one merges them.
template <int kVDim, int kKMaps, int kBlock, int kColumns>
__device__ __forceinline__ void EndItem(const AttentionLaunch& call, int64_t index, int group,
                                        const DecodeShared<kColumns>& layout, int warp, int lane) {
  // Read again: that costs less than registers that hold it while the strips stream by.
  const AttentionItem item = call.plan.items[index];
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

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles, bool kBulk,
          bool kQuantised>
__device__ __forceinline__ void DecodeItems(const AttentionLaunch& call) {
  using Strip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kColumns = kMmaColumns * kTiles;
  const DecodeShared<kColumns> layout = {
      DecodeRingBytes(Strip::kBytes, kVDim, kColumns, call.num_stages)};
  const uint32_t shared = SharedAddress(DynamicShared());
  StripRing<Strip, kBulk> ring = {shared + layout.Ring(warp), shared + layout.Barrier(warp, 0),
                                  call.num_stages, lane};
  ring.MakeBarriers();
  const auto num_work = static_cast<uint32_t>(min(*call.plan.num_items, call.plan.capacity)) *
                        static_cast<uint32_t>(call.num_groups);
  if (blockIdx.x >= num_work) return;
  DecodeWork next = DecodeWork::Load(call, blockIdx.x, lane);
  for (;;) {
    const DecodeWork work = next;
    const bool is_empty = work.tile.first_slot >= work.tile.end_slot;  // for other rows than these
    if (is_empty) {
      if (threadIdx.x == 0) TakeNextWork(call, layout, num_work);
    } else {
      if constexpr (kQuantised) {
        ReadExtents(call, work.tile, work.item, layout);
        __syncthreads();
      }
      DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kTiles> state;
      state.lane = lane;
      StreamStrips<Codec, kHeadDim, kVDim, kKMaps, kTiles, kBulk, kQuantised>(
          call, work, num_work, state, ring, warp, layout);
      PublishWarp(state, layout, warp, call.scale_log2);
    }
    __syncthreads();
    // The next item is on its way while this one ends.
    const uint32_t number = *layout.NextWork();
    if (number < num_work) next = DecodeWork::Load(call, number, lane);
    if (!is_empty) {
      EndItem<kVDim, kKMaps, kOutBlock<Codec, kHeadDim>, kColumns>(call, work.item, work.tile.group,
                                                                   layout, warp, lane);
    }
    if (number >= num_work) return;
    if constexpr (kBulk)
      ProxyFence();  // the next item's copies overwrite what was just read and written
    __syncthreads();
  }
}

// Two thread blocks per multiprocessor: without a number ptxas aims at more, and spills.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles, bool kBulk>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    DiffDecodeKernel(const __grid_constant__ AttentionLaunch call) {
  DecodeItems<Codec, kHeadDim, kVDim, kKMaps, kTiles, kBulk, false>(call);
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    DiffDecodeQuantisedKernel(const __grid_constant__ AttentionLaunch call) {
  DecodeItems<Codec, kHeadDim, kVDim, kKMaps, 2, false, true>(call);
}

}  // namespace diffserve::cuda
