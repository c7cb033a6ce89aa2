// SPDX-License-Identifier: Apache-2.0
// Image pages of bfloat16 on their way into shared memory for the Hopper prefill kernel: its
// shapes, the ring of pages with its barriers, and the warp that fills it.
#pragma once

#include "kernels/attention/diff_prefill_order.cuh"

namespace diffserve::cuda {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;
// A page is released only after the next one's scores are computed.
inline constexpr int kHopperStagesMin = 2;
inline constexpr int kHopperStagesMax = 4;
inline constexpr uint32_t kImageTileBytes = 2 * kImagePageSize * kImageTileColumns;  // of one page
                                                                                     // and 64
                                                                                     // columns
inline constexpr uint32_t kImageRowBytes = 2 * kImageTileColumns;
// Named barriers of both warpgroups that compute.
inline constexpr int kExchangeWritten = 1;
inline constexpr int kExchangeRead = 2;

template <int kHeadDim_, int kVDim_, int kKMaps_>
struct HopperShape {
  using Codec = BFloat16Codec;
  static constexpr KvFormat kPage = ImageOf<Codec, kHeadDim_, kVDim_, kKMaps_>(kImagePageSize);
  static_assert(kHeadDim_ % kImageTileColumns == 0 && kVDim_ % kImageTileColumns == 0);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kVDim = kVDim_;
  static constexpr int kKMaps = kKMaps_;
  // Where both outputs and the queries of both maps exceed a thread's registers.
  static constexpr bool kMapPerWarpgroup = kKMaps == 2 && kHeadDim > 64;
  static constexpr int kOutputs = kKMaps == 2 && !kMapPerWarpgroup ? 2 : 1;  // per warpgroup
  static constexpr int kKSteps = kHeadDim / 16;
  static constexpr int kVSteps = kImagePageSize / 16;
  static constexpr int kVTiles = kVDim / kImageTileColumns;
  static constexpr uint32_t kKMapBytes = kHeadDim / kImageTileColumns * kImageTileBytes;
  static constexpr uint32_t kKBytes = kKMaps * kKMapBytes;
  static constexpr uint32_t kVBytes = kVTiles * kImageTileBytes;
  static constexpr uint32_t kPageBytes = kKBytes + kVBytes;
  static_assert(kPage.PageBytes() == kPageBytes, "wgmma reads a page as it lies");
  // Registers per thread: 384 threads of 168.
  static constexpr int kFetchRegisters = 24;
  static constexpr int kComputeRegisters = 240;
  static_assert(kFetchRegisters + 2 * kComputeRegisters == 3 * 168);
  // Half of map 2's output on its way to map 1's warpgroup.
  static constexpr uint32_t kExchangeBytes = kMapPerWarpgroup
                                                 ? kWarpgroupRows * kVDim / 2 * sizeof(float)
                                                 : 0;
  static constexpr uint32_t kBarrierBytes = kHopperStagesMax * 3 * 8;
  static constexpr uint32_t kExtentBytes = kOutputs * 2 * kWarpgroupRows * sizeof(float);
  static constexpr uint32_t kRowBytes = (kMapPerWarpgroup ? 1 : 2) * kWarpgroupRows * sizeof(int);
};

// Shared memory: the ring of pages, the exchange, the barriers, the extents of quantised logits,
// and the ends of what the rows attend to.
template <typename Shape>
struct PageRing {
  uint32_t base;  // shared address; a multiple of 1024
  int num_stages;

  static constexpr uint32_t SharedBytes(int num_stages) {
    return static_cast<uint32_t>(num_stages) * Shape::kPageBytes + Shape::kExchangeBytes +
           Shape::kBarrierBytes + Shape::kExtentBytes + Shape::kRowBytes;
  }
  __device__ __forceinline__ uint32_t K(int stage) const {
    return base + static_cast<uint32_t>(stage) * Shape::kPageBytes;
  }
  __device__ __forceinline__ uint32_t V(int stage) const { return K(stage) + Shape::kKBytes; }
  __device__ __forceinline__ uint32_t Exchange() const { return K(num_stages); }
  __device__ __forceinline__ uint32_t KFull(int stage) const {
    return Exchange() + Shape::kExchangeBytes + static_cast<uint32_t>(stage) * 24;
  }
  __device__ __forceinline__ float* Extents() const {
    const uint32_t begin = KFull(0) + Shape::kBarrierBytes;
    return reinterpret_cast<float*>(DynamicShared() + (begin - base));
  }
  __device__ __forceinline__ int* RowEnds() const {
    return reinterpret_cast<int*>(Extents() + Shape::kExtentBytes / sizeof(float));
  }
  __device__ __forceinline__ uint32_t VFull(int stage) const { return KFull(stage) + 8; }
  __device__ __forceinline__ uint32_t Empty(int stage) const { return KFull(stage) + 16; }

  __device__ __forceinline__ void Init() const {
    for (int stage = 0; stage < num_stages; ++stage) {
      BarrierInit(KFull(stage), 1);
      BarrierInit(VFull(stage), 1);
      BarrierInit(Empty(stage), 2 * kWarpgroupThreads / 32);  // every warp that computes
    }
    BarrierInitFence();
  }
};

struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(int num_stages) {
    if (++stage < num_stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Pages of a tile or a part of it, from the tile's first.
__device__ __forceinline__ int NumPages(const QueryTile& tile) {
  return max(0, (tile.end_slot - tile.first_slot + kImagePageSize - 1) / kImagePageSize);
}

// ---- The warp that fetches.

// Fetches only K; V's barrier counts as full.
template <typename Shape>
__device__ __forceinline__ void FetchK(const PageRing<Shape>& ring, int stage,
                                       const uint16_t* page) {
  if (!ElectedLane()) return;
  BarrierArriveExpect(ring.KFull(stage), Shape::kKBytes);
  BulkCopy(ring.K(stage), page, Shape::kKBytes, ring.KFull(stage));
  BarrierArrive(ring.VFull(stage));
}

// Copies slots [begin, end) of V and zeroes the others: a weight of 0 does not hide a NaN.
template <typename Shape>
__device__ __forceinline__ void FetchPage(const PageRing<Shape>& ring, int stage,
                                          const uint16_t* page, int begin, int end, int lane) {
  const uint32_t v = ring.V(stage);
  const uint32_t begin_bytes = static_cast<uint32_t>(begin) * kImageRowBytes;
  const uint32_t end_bytes = static_cast<uint32_t>(end) * kImageRowBytes;
  if (begin > 0 || end < kImagePageSize) {
    std::byte* bytes = DynamicShared() + (v - ring.base);
    for (uint32_t at = static_cast<uint32_t>(lane) * 16; at < Shape::kVBytes; at += 32 * 16) {
      const uint32_t in_tile = at % kImageTileBytes;
      if (in_tile < begin_bytes || in_tile >= end_bytes)
        *reinterpret_cast<uint4*>(bytes + at) = make_uint4(0, 0, 0, 0);
    }
    ProxyFence();
    __syncwarp();
  }
  if (!ElectedLane()) return;
  BarrierArriveExpect(ring.KFull(stage), Shape::kKBytes);
  BulkCopy(ring.K(stage), page, Shape::kKBytes, ring.KFull(stage));
  const uint16_t* source = page + Shape::kKBytes / 2;
  BarrierArriveExpect(ring.VFull(stage), Shape::kVTiles * (end_bytes - begin_bytes));
  for (uint32_t tile = begin_bytes; tile < Shape::kVBytes; tile += kImageTileBytes)
    BulkCopy(v + tile, source + tile / 2, end_bytes - begin_bytes, ring.VFull(stage));
}

template <typename Shape, bool kKAlone>
__device__ __forceinline__ void FetchTile(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                          const QueryTile& tile, RingPosition& at, int lane) {
  const int num_pages = NumPages(tile);
  const int32_t* pages = call.batch.pages + tile.sequence.first_page +
                         tile.first_slot / kImagePageSize;
  int32_t page_of_lane = 0;
  for (int page = 0; page < num_pages; ++page) {
    if (page % 32 == 0) page_of_lane = page + lane < num_pages ? pages[page + lane] : 0;
    const int32_t id = __shfl_sync(kAllLanes, page_of_lane, page % 32);
    BarrierWait(ring.Empty(at.stage), at.parity ^ 1);
    __syncwarp();  // a lane's copy may end the phase after next, which has the same parity
    const uint16_t* source = ImagePage<Shape>(call.kv, id, tile.group);
    if constexpr (kKAlone) {
      FetchK<Shape>(ring, at.stage, source);
    } else {
      const int slot = tile.first_slot + page * kImagePageSize;
      FetchPage<Shape>(ring, at.stage, source,
                       max(UnmaskedSlots::Of(call, tile).first_of_any - slot, 0),
                       min(tile.end_slot - slot, kImagePageSize), lane);
    }
    at.Advance(ring.num_stages);
  }
}

template <typename Shape, bool kQuantised>
__device__ __forceinline__ void FetchPages(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                           int lane) {
  RingPosition at;
  for (int turn = 0;; ++turn) {
    const PrefillWork work = PrefillWorkOf(call, turn);
    if (work.item < 0) return;
    const QueryTile tile = PrefillTileOf(call, work);
    if constexpr (kQuantised) {
      if (call.logits.needs_row()) FetchTile<Shape, true>(call, ring, tile, at, lane);
    }
    FetchTile<Shape, false>(call, ring, tile, at, lane);
  }
}

}  // namespace diffserve::cuda
