// SPDX-License-Identifier: Apache-2.0
// The portable kernels of DiffDecode (sm_80); those with bulk copies are in diff_decode_pages.cuh.
//
// A thread block of four warps takes a work item: one tile of query rows, one group, one split of
// 512 to 2,048 slots. Each warp streams its own strips (every fourth 16 slots) through its own ring
// in shared memory, without barriers between warps, and keeps its own softmaxes. At the end they
// are merged in the order of the warps. Quantised logits need their extents first; a separate
// launch computes them (diff_decode_extents.cuh).
#pragma once

#include "kernels/attention/diff_decode_end.cuh"

namespace diffserve::cuda {

inline constexpr int kDecodeStagesMax = 4;
inline constexpr int kDecodeTiles = 2;  // of columns

// Bytes of one warp's ring. The merge needs room there for the warp's O.
DIFFSERVE_HOST_DEVICE constexpr uint32_t DecodeRingBytes(uint32_t strip_bytes, int v_dim,
                                                         int num_stages) {
  const uint32_t ring = strip_bytes * static_cast<uint32_t>(num_stages);
  const uint32_t merge = static_cast<uint32_t>(kDecodeTiles * kMmaColumns * v_dim) * sizeof(float);
  return ring > merge ? ring : merge;
}
DIFFSERVE_HOST_DEVICE constexpr size_t DecodeSharedBytes(uint32_t strip_bytes, int v_dim,
                                                         int num_stages) {
  return kDecodeWarps * DecodeRingBytes(strip_bytes, v_dim, num_stages) +
         DecodeControlBytes(kDecodeTiles * kMmaColumns);
}
// Bytes after these, if logits are quantised: the extent of each row in each page of the split.
inline constexpr size_t kDecodeExtentBytes = kDecodeTiles * kMmaColumns * kSplitPagesMax *
                                             sizeof(float);

// A warp's ring of strips, which runs on from one item to the next: every strip that was asked for
// is waited for. The stages follow one another by comparison, since a division by a number that is
// not known at compile time takes some thirty instructions.
template <typename Strip>
struct StripRing {
  uint32_t base;  // shared address
  int num_stages;
  int lane;
  int next_to_fill = 0;
  int next_to_read = 0;

  __device__ __forceinline__ void Issue(const typename Strip::Element* page, int index) {
    Strip::CopyByLanes(Stage(next_to_fill), page, index, lane);
    next_to_fill = After(next_to_fill);
  }
  // Called once per strip, issued or not, so that groups can be counted.
  __device__ __forceinline__ void Commit() const { CpAsyncCommit(); }
  // The shared address of the next strip, once it has arrived.
  __device__ __forceinline__ uint32_t Wait() {
    const int stage = next_to_read;
    next_to_read = After(stage);
    WaitForOldestStage(num_stages);
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
};

template <int kColumns>
__device__ __forceinline__ float* Extents(const DecodeShared<kColumns>& layout) {
  return reinterpret_cast<float*>(DynamicShared() + layout.End());
}

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
  float* const extents = Extents(layout) + row * kSplitPagesMax;
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

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, bool kQuantised>
__device__ __forceinline__ void StreamStrips(
    const AttentionLaunch& call, const DecodeWork& work, uint32_t num_work,
    DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kDecodeTiles, kStripSlots>& state,
    StripRing<KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>>& ring, int warp,
    const DecodeShared<kMmaColumns * kDecodeTiles>& layout) {
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
      __syncwarp();
    }
    const bool masked = !unmasked.Hold(slot, kStripSlots);
    if constexpr (kQuantised) {
      const int page = slot % call.tiling.SplitSlots(tile.sequence) / kImagePageSize;
      state.Consume({strip, 0}, slot, masked, call, {Extents(layout) + page, kSplitPagesMax});
    } else {
      state.Consume({strip, 0}, slot, masked, call);
    }
    __syncwarp();
  }
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, bool kQuantised>
__device__ __forceinline__ void DecodeItems(const AttentionLaunch& call) {
  using Strip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kColumns = kMmaColumns * kDecodeTiles;
  const uint32_t ring_bytes = DecodeRingBytes(Strip::kBytes, kVDim, call.num_stages);
  const DecodeShared<kColumns> layout = {0, ring_bytes, kDecodeWarps * ring_bytes};
  StripRing<Strip> ring = {SharedAddress(DynamicShared()) + layout.O(warp), call.num_stages, lane};
  const PlannedWork planned = PlannedWork::Of(call);
  if (blockIdx.x >= planned.count) return;
  DecodeWork next = DecodeWork::Load(call, planned, blockIdx.x, lane);
  for (;;) {
    const DecodeWork work = next;
    const bool is_empty = work.tile.first_slot >= work.tile.end_slot;  // for other rows than these
    if (is_empty) {
      if (threadIdx.x == 0) TakeNextWork(call, layout, planned.count);
    } else {
      if constexpr (kQuantised) {
        ReadExtents(call, work.tile, work.item, layout);
        __syncthreads();
      }
      DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kDecodeTiles, kStripSlots> state;
      state.lane = lane;
      StreamStrips<Codec, kHeadDim, kVDim, kKMaps, kQuantised>(call, work, planned.count, state,
                                                               ring, warp, layout);
      PublishWarp(state, layout, warp, call.scale_log2);
    }
    __syncthreads();
    // The next item is on its way while this one ends.
    const uint32_t number = *layout.NextWork();
    if (number < planned.count) next = DecodeWork::Load(call, planned, number, lane);
    if (!is_empty) {
      EndItem<kVDim, kKMaps, kOutBlock<Codec, kHeadDim>, kColumns>(
          call, planned.items, work.item, work.tile.group, layout, warp, lane);
    }
    if (number >= planned.count) return;
    __syncthreads();
  }
}

// Two thread blocks per multiprocessor: without a number ptxas aims at more, and spills.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    DiffDecodeKernel(const __grid_constant__ AttentionLaunch call) {
  DecodeItems<Codec, kHeadDim, kVDim, kKMaps, false>(call);
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    DiffDecodeQuantisedKernel(const __grid_constant__ AttentionLaunch call) {
  DecodeItems<Codec, kHeadDim, kVDim, kKMaps, true>(call);
}

}  // namespace diffserve::cuda
