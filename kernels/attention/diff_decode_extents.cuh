// SPDX-License-Identifier: Apache-2.0
// The extent of each row's scores in each page, which decode with quantised logits needs before its
// own kernel (diff_decode.cuh). Reads only K. An extent is a maximum, which has no order, so it is
// the same however a row's slots are cut into splits.
#pragma once

#include "kernels/attention/diff_decode.cuh"

namespace diffserve::cuda {

// The warp's part of a split: pages warp and warp + kDecodeWarps, strip by strip.
struct ExtentStrips {
  int warp;
  int count;

  __device__ __forceinline__ static ExtentStrips Of(const QueryTile& tile, int warp) {
    const int strips = (tile.end_slot - tile.first_slot + kStripSlots - 1) / kStripSlots;
    int count = 0;
    for (int page = warp; page < kSplitPagesMax; page += kDecodeWarps)
      count += min(max(strips - page * kStripsPerPage, 0), kStripsPerPage);
    return {warp, count};
  }
  __device__ __forceinline__ int Page(int strip) const {
    return warp + strip / kStripsPerPage * kDecodeWarps;
  }
  __device__ __forceinline__ bool EndsPage(int strip) const {
    return strip + 1 == count || strip % kStripsPerPage == kStripsPerPage - 1;
  }
};

// Writes the extents of one page, by the eight lanes that hold parts of each column.
__device__ __forceinline__ void WriteExtents(const AttentionLaunch& call, const QueryTile& tile,
                                             int64_t item, int page, const float (&extents)[2][2],
                                             int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float extent = extents[i / 2][i % 2];
#pragma unroll
    for (int bits = 4; bits < 32; bits *= 2)
      extent = fmaxf(extent, __shfl_xor_sync(kAllLanes, extent, bits));
    const int map = call.finish.has_second_map ? i / 2 : 0;
    const int query = lane % 4 * 2 + i % 2 + kMmaColumns * (i / 2 - map);
    if (lane < 4 && query < tile.num_queries)
      call.Extents(item, tile.group, query, map)[page] = extent;
  }
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__device__ __forceinline__ void StreamExtents(
    const AttentionLaunch& call, const QueryTile& tile, int64_t item,
    const DecodeQueries<Codec, kHeadDim, kVDim, kKMaps, 2, kStripSlots>& queries, int warp) {
  using Strip = typename DecodeQueries<Codec, kHeadDim, kVDim, kKMaps, 2, kStripSlots>::KStrip;
  const int lane = queries.lane;
  const uint32_t shared = SharedAddress(DynamicShared());
  StripRing<Strip> ring = {shared + static_cast<uint32_t>(warp * call.num_stages) * Strip::kBytes,
                           call.num_stages, lane};
  const ExtentStrips strips = ExtentStrips::Of(tile, warp);
  const int num_pages = (tile.end_slot - tile.first_slot + kImagePageSize - 1) / kImagePageSize;
  const int first_page = tile.sequence.first_page + tile.first_slot / kImagePageSize;
  const int page_of_lane = lane < num_pages ? call.batch.pages[first_page + lane] : 0;
  const int page_in_split = tile.first_slot % call.tiling.SplitSlots(tile.sequence) /
                            kImagePageSize;
  const float none = call.logits.NoExtent();
  float extents[2][2] = {{none, none}, {none, none}};
  const int ahead = ring.num_stages - 1;
  for (int j = -ahead; j < strips.count; ++j) {
    const int next = j + ahead;
    const int page = __shfl_sync(kAllLanes, page_of_lane, strips.Page(next) & 31);
    if (next < strips.count)
      ring.Issue(ImagePage<Strip>(call.kv, page, tile.group), next % kStripsPerPage);
    ring.Commit();
    if (j < 0) continue;
    const uint32_t strip = ring.Wait();
    const int slot = tile.first_slot + strips.Page(j) * kImagePageSize +
                     j % kStripsPerPage * kStripSlots;
    queries.Widen(extents, {strip, 0}, slot, call);
    __syncwarp();
    if (!strips.EndsPage(j)) continue;
    WriteExtents(call, tile, item, page_in_split + strips.Page(j), extents, lane);
    extents[0][0] = extents[0][1] = extents[1][0] = extents[1][1] = none;
  }
}

template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    DiffDecodeExtentsKernel(const __grid_constant__ AttentionLaunch call) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const PlannedWork planned = PlannedWork::Of(call);
  for (int64_t work = blockIdx.x; work < planned.count; work += gridDim.x) {
    const int64_t item = work / call.num_groups;
    const QueryTile tile = QueryTileOf(call, planned.items[item],
                                       static_cast<int>(work % call.num_groups));
    if (tile.first_slot >= tile.end_slot) continue;
    DecodeQueries<Codec, kHeadDim, kVDim, kKMaps, 2, kStripSlots> queries;
    queries.lane = static_cast<int>(threadIdx.x) % 32;
    queries.BeginQueries(call, tile);
    StreamExtents<Codec, kHeadDim, kVDim, kKMaps>(call, tile, item, queries, warp);
  }
}

}  // namespace diffserve::cuda
