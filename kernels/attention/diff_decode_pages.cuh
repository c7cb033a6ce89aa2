// SPDX-License-Identifier: Apache-2.0
// The kernels of DiffDecode with bulk copies (sm_90).
//
// A fifth warp fetches whole pages, each by one copy, into a ring in shared memory. The ring runs
// on from one item to the next, so the stream does not pause while an item ends. The other four
// warps take a strip of 16 slots of each page. They compute what the portable kernels do, in the
// same order (diff_decode.cuh).
//
// The kernel may start before the one before it ends (LaunchShape::is_dependent). Until that one
// has ended, it reads only what no kernel of the step writes: plan, page ids and full pages.
#pragma once

#include "kernels/attention/diff_decode_end.cuh"

namespace diffserve::cuda {

inline constexpr int kDecodePagesThreads = kDecodeThreads + 32;
inline constexpr int kDecodePageStagesMin = 2;  // with one, nothing is fetched during a page
inline constexpr int kDecodePageStagesMax = 8;
inline constexpr uint32_t kNoMoreWork = 0xffffffffu;

// Bytes of a warp's O.
DIFFSERVE_HOST_DEVICE constexpr uint32_t DecodeOBytes(int v_dim, int num_tiles) {
  return static_cast<uint32_t>(kMmaColumns * num_tiles * v_dim) * sizeof(float);
}
DIFFSERVE_HOST_DEVICE constexpr size_t DecodePagesSharedBytes(uint32_t page_bytes, int v_dim,
                                                              int num_tiles, int num_stages) {
  return static_cast<size_t>(num_stages) * page_bytes +
         kDecodeWarps * DecodeOBytes(v_dim, num_tiles) +
         DecodeControlBytes(kMmaColumns * num_tiles) + kDecodePageStagesMax * 20;
}
// Thread blocks that share a multiprocessor of Hopper: two if their memory allows it, and their
// registers. Most of these hold O; widths that are no power of two take more for addresses.
inline constexpr size_t kHopperSharedBytes = 227 * 1024;
inline constexpr size_t kReservedSharedBytes = 1024;  // CUDA takes this much per thread block
DIFFSERVE_HOST_DEVICE constexpr int DecodePagesBlocks(uint32_t page_bytes, int v_dim,
                                                      int num_tiles) {
  const size_t bytes = DecodePagesSharedBytes(page_bytes, v_dim, num_tiles, kDecodePageStagesMin);
  const bool has_registers = num_tiles * v_dim <= 256 && (v_dim & (v_dim - 1)) == 0;
  return has_registers && 2 * bytes + kReservedSharedBytes <= kHopperSharedBytes ? 2 : 1;
}

// The ring: pages, each with a barrier that says that it is full and one that says that it is
// empty, and the number of the work that it belongs to.
template <typename Page, int kColumns>
struct DecodePages {
  uint32_t base;      // shared address of the pages
  uint32_t barriers;  // shared address
  int num_stages;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ static DecodePages Of(const DecodeShared<kColumns>& layout,
                                                   int num_stages) {
    const uint32_t base = SharedAddress(DynamicShared());
    return {base, base + layout.End(), num_stages};
  }
  __device__ __forceinline__ void MakeBarriers() const {
#pragma unroll 1
    for (int i = 0; i < num_stages; ++i) {
      BarrierInit(barriers + static_cast<uint32_t>(i * 16), 1);
      BarrierInit(barriers + static_cast<uint32_t>(i * 16) + 8, kDecodeWarps);
    }
    BarrierInitFence();
  }
  __device__ __forceinline__ uint32_t Address() const {
    return base + static_cast<uint32_t>(stage) * Page::kBytes;
  }
  __device__ __forceinline__ uint32_t Full() const {
    return barriers + static_cast<uint32_t>(stage * 16);
  }
  __device__ __forceinline__ uint32_t Empty() const { return Full() + 8; }
  __device__ __forceinline__ uint32_t& Work() const {
    std::byte* const begin = DynamicShared() + (barriers - base) + kDecodePageStagesMax * 16;
    return reinterpret_cast<uint32_t*>(begin)[stage];
  }
  __device__ __forceinline__ void WaitUntilFull() const { BarrierWait(Full(), parity); }
  __device__ __forceinline__ void WaitUntilEmpty() const { BarrierWait(Empty(), parity ^ 1); }
  __device__ __forceinline__ void Advance() {
    if (++stage < num_stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The number of the first item's pages that may be fetched before the kernel before this one ends:
// those that earlier steps have filled.
__device__ __forceinline__ int PagesOfEarlierSteps(const PlannedWork& planned,
                                                   const QueryTile& tile) {
  if (!planned.keeps_earlier_slots) return 0;
  const int num_pages = (tile.end_slot + kImagePageSize - 1) / kImagePageSize;
  return min(num_pages, tile.sequence.position / kImagePageSize) - tile.first_slot / kImagePageSize;
}

// The warp that fetches. REQUIRES: the block has work.
template <typename Page, int kColumns>
__device__ __forceinline__ void FetchPages(const AttentionLaunch& call, const PlannedWork& planned,
                                           DecodePages<Page, kColumns> ring, int lane) {
  uint32_t number = blockIdx.x;
  DecodeWork work = DecodeWork::Load(call, planned, number, lane);
  const auto fetch = [&](int i) {
    const int page = __shfl_sync(kAllLanes, work.page_of_lane, i);
    ring.WaitUntilEmpty();
    if (ElectedLane()) {
      ring.Work() = number;
      BarrierArriveExpect(ring.Full(), Page::kBytes);
      BulkCopyOnce(ring.Address(), ImagePage<Page>(call.kv, page, work.tile.group), Page::kBytes,
                   ring.Full());
    }
    ring.Advance();
  };
  int fetched = 0;
  const int early = min(ring.num_stages, PagesOfEarlierSteps(planned, work.tile));
  for (; fetched < early; ++fetched) fetch(fetched);
  WaitForPrevious();
  for (;;) {
    // Thread blocks take the items after their first ones by a counter, since some multiprocessors
    // are slower than others. Each takes one number too many, so the counter ends at 0.
    uint32_t next = 0;
    if (lane == 0) next = gridDim.x + CountInTurn(call.counters, planned.count - 1);
    const int num_slots = work.tile.end_slot - work.tile.first_slot;
    for (; fetched * kImagePageSize < num_slots; ++fetched) fetch(fetched);
    number = __shfl_sync(kAllLanes, next, 0);
    if (number >= planned.count) break;
    work = DecodeWork::Load(call, planned, number, lane);
    fetched = 0;
  }
  LaunchDependents();
  ring.WaitUntilEmpty();
  if (ElectedLane()) {
    ring.Work() = kNoMoreWork;
    BarrierArrive(ring.Full());
  }
}

// One of the warps that compute.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles, typename Page>
__device__ __forceinline__ void ConsumePages(const AttentionLaunch& call,
                                             const AttentionItem* items,
                                             const DecodeShared<kMmaColumns * kTiles>& layout,
                                             DecodePages<Page, kMmaColumns * kTiles> ring, int warp,
                                             int lane) {
  for (;;) {
    ring.WaitUntilFull();
    const uint32_t number = ring.Work();
    if (number == kNoMoreWork) return;
    const auto num_groups = static_cast<uint32_t>(call.num_groups);
    const int64_t item = number / num_groups;
    const int group = static_cast<int>(number % num_groups);
    const QueryTile tile = QueryTileOf(call, items[item], group);
    const UnmaskedSlots unmasked = UnmaskedSlots::Of(call, tile);
    DecodeWarp<Codec, kHeadDim, kVDim, kKMaps, kTiles, kImagePageSize> state;
    state.lane = lane;
    state.Begin(call, tile);
    for (int first = tile.first_slot; first < tile.end_slot; first += kImagePageSize) {
      ring.WaitUntilFull();
      const int slot = first + warp * kStripSlots;
      if (slot < tile.end_slot) {
        if (slot < unmasked.first_of_any || slot + kStripSlots > tile.end_slot) {
          std::byte* const page = DynamicShared() + (ring.Address() - ring.base);
          Page::ClearV(page, unmasked.first_of_any - slot, tile.end_slot - slot, lane,
                       warp * kStripSlots);
          ProxyFence();  // a later page's copy overwrites what was cleared
          __syncwarp();
        }
        state.Consume({ring.Address(), warp * kStripSlots}, slot, !unmasked.Hold(slot, kStripSlots),
                      call);
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(ring.Empty());
      ring.Advance();
    }
    MeetWarps();  // the item before is merged
    PublishWarp(state, layout, warp, call.scale_log2);
    MeetWarps();
    EndItem<kVDim, kKMaps, kOutBlock<Codec, kHeadDim>, kMmaColumns * kTiles>(
        call, items, item, group, layout, warp, lane);
  }
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
using DecodePage = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize, false, kImagePageSize>;

template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles>
__global__ void __launch_bounds__(
    kDecodePagesThreads,
    DecodePagesBlocks(DecodePage<Codec, kHeadDim, kVDim, kKMaps>::kBytes, kVDim, kTiles))
    DiffDecodePagesKernel(const __grid_constant__ AttentionLaunch call) {
  using Page = DecodePage<Codec, kHeadDim, kVDim, kKMaps>;
  constexpr int kColumns = kMmaColumns * kTiles;
  constexpr uint32_t kOBytes = DecodeOBytes(kVDim, kTiles);
  const uint32_t pages = static_cast<uint32_t>(call.num_stages) * Page::kBytes;
  const DecodeShared<kColumns> layout = {pages, kOBytes, pages + kDecodeWarps * kOBytes};
  const auto ring = DecodePages<Page, kColumns>::Of(layout, call.num_stages);
  const PlannedWork planned = PlannedWork::Of(call);
  if (blockIdx.x >= planned.count) {
    WaitForPrevious();
    return;
  }
  if (threadIdx.x == 0) ring.MakeBarriers();
  __syncthreads();
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warp == kDecodeWarps) {
    FetchPages(call, planned, ring, lane);
  } else {
    WaitForPrevious();
    ConsumePages<Codec, kHeadDim, kVDim, kKMaps, kTiles>(call, planned.items, layout, ring, warp,
                                                         lane);
  }
}

}  // namespace diffserve::cuda
