// SPDX-License-Identifier: Apache-2.0
// Image pages on their way into shared memory for the Hopper prefill kernel: its shapes, the ring
// of pages with its barriers, and the warp that fills it.
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

template <typename Codec_, int kHeadDim_, int kVDim_, int kKMaps_>
struct HopperShape {
  using Codec = Codec_;
  static constexpr KvFormat kPage = ImageOf<Codec, kHeadDim_, kVDim_, kKMaps_>(kImagePageSize);
  static_assert(Codec::Description().dtype == DType::kBFloat16, "wgmma reads a page as it lies");
  static_assert(kHeadDim_ % kImageTileColumns == 0 && kVDim_ % kImageTileColumns == 0);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kVDim = kVDim_;
  static constexpr int kKMaps = kKMaps_;
  static constexpr bool kMapPerWarpgroup = kKMaps == 2 && kVDim > 128;
  static constexpr int kOutputs = kKMaps == 2 && !kMapPerWarpgroup ? 2 : 1;  // per warpgroup
  static constexpr int kKSteps = kHeadDim / 16;
  static constexpr int kVSteps = kImagePageSize / 16;
  static constexpr int kVTiles = kVDim / kImageTileColumns;
  static constexpr uint32_t kKMapBytes = kHeadDim / kImageTileColumns * kImageTileBytes;
  static constexpr uint32_t kKBytes = kKMaps * kKMapBytes;
  static constexpr uint32_t kVBytes = kVTiles * kImageTileBytes;
  static constexpr uint32_t kPageBytes = static_cast<uint32_t>(
      ImageOf<Codec, kHeadDim, kVDim, kKMaps>(kImagePageSize).PageBytes());
  static_assert(kPageBytes == kKBytes + kVBytes);
  // Half of map 2's output on its way to map 1's warpgroup.
  static constexpr uint32_t kExchangeBytes = kMapPerWarpgroup
                                                 ? kWarpgroupRows * kVDim / 2 * sizeof(float)
                                                 : 0;
  static constexpr uint32_t kBarrierBytes = kHopperStagesMax * 3 * 8;
  static constexpr uint32_t kExtentBytes = kOutputs * 2 * kWarpgroupRows * sizeof(float);
};

// Shared memory: the ring of pages, the exchange, the barriers, and the extents of quantised
// logits.
template <typename Shape>
struct PageRing {
  uint32_t base;  // shared address; a multiple of 1024
  int num_stages;

  static constexpr uint32_t SharedBytes(int num_stages) {
    return static_cast<uint32_t>(num_stages) * Shape::kPageBytes + Shape::kExchangeBytes +
           Shape::kBarrierBytes + Shape::kExtentBytes;
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

// Pages of a tile or a part of it, from slot 0.
__device__ __forceinline__ int NumPages(const QueryTile& tile) {
  return (tile.end_slot + kImagePageSize - 1) / kImagePageSize;
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

// Copies `num_slots` slots of V and zeroes the rest: a weight of 0 does not hide a NaN.
template <typename Shape>
__device__ __forceinline__ void FetchPage(const PageRing<Shape>& ring, int stage,
                                          const uint16_t* page, int num_slots, int lane) {
  const uint32_t v = ring.V(stage);
  if (num_slots < kImagePageSize) {
    std::byte* bytes = DynamicShared() + (v - ring.base);
    const uint32_t begin = static_cast<uint32_t>(num_slots) * kImageRowBytes +
                           static_cast<uint32_t>(lane) * 16;
    for (uint32_t tile = 0; tile < Shape::kVBytes; tile += kImageTileBytes) {
      for (uint32_t at = begin; at < kImageTileBytes; at += 32 * 16) {
        *reinterpret_cast<uint4*>(bytes + tile + at) = make_uint4(0, 0, 0, 0);
      }
    }
    ProxyFence();
    __syncwarp();
  }
  if (!ElectedLane()) return;
  BarrierArriveExpect(ring.KFull(stage), Shape::kKBytes);
  BulkCopy(ring.K(stage), page, Shape::kKBytes, ring.KFull(stage));
  const uint32_t tile_bytes = static_cast<uint32_t>(num_slots) * kImageRowBytes;
  const uint16_t* source = page + Shape::kKBytes / 2;
  BarrierArriveExpect(ring.VFull(stage), Shape::kVTiles * tile_bytes);
  for (uint32_t tile = 0; tile < Shape::kVBytes; tile += kImageTileBytes) {
    BulkCopy(v + tile, source + tile / 2, tile_bytes, ring.VFull(stage));
  }
}

template <typename Shape, bool kKAlone>
__device__ __forceinline__ void FetchTile(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                          const QueryTile& tile, RingPosition& at, int lane) {
  const int num_pages = NumPages(tile);
  const int32_t* pages = call.batch.pages + tile.sequence.first_page;
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
      FetchPage<Shape>(ring, at.stage, source,
                       min(tile.end_slot - page * kImagePageSize, kImagePageSize), lane);
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
