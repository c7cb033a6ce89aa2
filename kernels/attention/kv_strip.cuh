// SPDX-License-Identifier: Apache-2.0
// A strip (16 slots of one page: K1 | K2 | V) on its way from an image page into shared memory, and
// the addresses at which ldmatrix finds its rows there. One warp does it all. Whole pages in shared
// memory have the same addresses but for their number of slots. Matrices are counted in "chunks":
// columns of 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention/kv_format.h"
#include "kernels/attention/kv_fragments.cuh"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

inline constexpr int kChunkBytes = 16;
inline constexpr int kChunkColumnBytes = kStripSlots * kChunkBytes;  // per strip

// Byte offset, in a matrix of kSlots slots in image form, of chunk `unit` of `row` or of the next
// chunk. `unit` is a compile-time constant. Where it is even, the part that depends on the lane is
// one XOR; it is odd in the second part of V where a part has an odd number of chunks.
template <int kSlots>
__device__ __forceinline__ uint32_t StripOffset(int chunks, int unit, int row, int half) {
  const KvImageTile tile = KvImageTileOf(chunks, unit, 1);
  if (tile.columns == 8 && unit % 2 == 0) {
    const int in_lane = row * 8 * kChunkBytes + ((half ^ (row & 7)) * kChunkBytes);
    return static_cast<uint32_t>(tile.first_column * kSlots * kChunkBytes +
                                 (in_lane ^ ((unit - tile.first_column) * kChunkBytes)));
  }
  return static_cast<uint32_t>(kChunkBytes * KvImageOffset(kSlots, chunks, row, unit + half, 1));
}

// A page of Shape::kPage, whose size the compiler knows.
template <typename Shape>
__device__ __forceinline__ const typename Shape::Codec::Element* ImagePage(const PagedKv& kv,
                                                                           int32_t id, int group) {
  const uint64_t page = uint64_t{static_cast<uint32_t>(id)} *
                            static_cast<uint32_t>(kv.format.num_groups) +
                        static_cast<uint32_t>(group);
  return reinterpret_cast<const typename Shape::Codec::Element*>(
      kv.base + page * static_cast<uint32_t>(Shape::kPage.PageBytes()));
}

// One group's page of a shape known at compile time.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
constexpr KvFormat ImageOf(int page_size) {
  KvCodec codec = Codec::Description();
  if (codec.scale_bits > 0) codec.scale_group = kHeadDim;
  return {page_size, 1, kKMaps, kHeadDim, kVDim, codec, KvArrangement::kImage};
}

// K1 | K2 | V and their scales. With kKAlone without V, whose place before the scales stays empty.
// kSlots: slots that lie together in shared memory, a strip or a page. `first`: the first of the
// strip among them.
template <typename Codec_, int kHeadDim, int kVDim, int kKMaps, int kPageSize, bool kKAlone = false,
          int kSlots = kStripSlots>
struct KvStrip {
  using Codec = Codec_;
  using Element = typename Codec::Element;
  using K = KFragments<Codec>;
  using V = VFragments<Codec>;
  static constexpr bool kHasV = !kKAlone;
  static constexpr bool kHasScales = Codec::Description().scale_bits > 0;
  static constexpr KvFormat kPage = ImageOf<Codec, kHeadDim, kVDim, kKMaps>(kPageSize);
  static constexpr KvFormat kFormat = ImageOf < Codec, kHeadDim, kHasV || kHasScales ? kVDim : 0,
                            kKMaps > (kSlots);
  static constexpr uint32_t kBytes = static_cast<uint32_t>(kFormat.PageBytes());
  static constexpr int kVParts = kHasScales ? kVDim / kHeadDim : 1;  // each has a scale
  static constexpr int kKChunk = 128 / Codec::Description().k_bits;  // numbers
  static constexpr int kVChunk = 128 / Codec::Description().v_bits;
  static constexpr int kKChunks = kPage.KColumns() / kKChunk;
  static constexpr int kVChunks = kPage.VColumns() / kVChunk;
  static constexpr int kChunks = kKMaps * kKChunks + (kHasV ? kVChunks : 0);
  static constexpr uint32_t kColumnBytes = kSlots * kChunkBytes;
  static constexpr uint32_t kVBegin = kColumnBytes * kKMaps * kKChunks;
  static constexpr uint32_t kScaleRunBytes = kSlots * sizeof(float);
  static constexpr int kScaleRuns = kHasScales ? kKMaps + (kHasV ? kVParts : 0) : 0;

  // The tile that holds a chunk of the columns K1 | K2 | V.
  struct Tile {
    int first;
    int chunks;
  };
  __device__ __forceinline__ static constexpr Tile TileOf(int chunk) {
    const bool is_v = chunk >= kKMaps * kKChunks;
    const int matrix = is_v ? kKMaps * kKChunks : chunk / kKChunks * kKChunks;
    const KvImageTile tile = KvImageTileOf(is_v ? kVChunks : kKChunks, chunk - matrix, 1);
    return {matrix + tile.first_column, tile.columns};
  }
  // Byte offset in a page of the part of strip `index` that lies at `chunk` of a strip.
  __device__ __forceinline__ static int BytesInPage(int chunk, int index) {
    const Tile tile = TileOf(chunk);
    return tile.first * kPageSize * kChunkBytes +
           (index * tile.chunks + chunk - tile.first) * kChunkColumnBytes;
  }
  __device__ __forceinline__ static const std::byte* ScalesInPage(const Element* page, int run,
                                                                  int index) {
    return reinterpret_cast<const std::byte*>(page) + kPage.ScaleBegin() +
           (run * kPageSize + index * kStripSlots) * static_cast<int>(sizeof(float));
  }
  __device__ __forceinline__ static constexpr uint32_t ScaleRun(int run) {
    return static_cast<uint32_t>(kFormat.ScaleBegin()) +
           static_cast<uint32_t>(run) * kScaleRunBytes;
  }

  // 16 bytes per lane and instruction. The strip has arrived after CpAsyncWait by all lanes and
  // __syncwarp.
  __device__ __forceinline__ static void CopyByLanes(uint32_t shared, const Element* page,
                                                     int index, int lane) {
    static_assert(kSlots == kStripSlots);
    const auto* bytes = reinterpret_cast<const std::byte*>(page);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      const bool is_last = chunk + 1 == kChunks;
      if (is_last && lane >= kStripSlots) break;
      int in_page = BytesInPage(chunk, index);
      if (!is_last && TileOf(chunk).first != TileOf(chunk + 1).first && lane >= kStripSlots)
        in_page = BytesInPage(chunk + 1, index) - kChunkColumnBytes;
      CpAsync16(shared + static_cast<uint32_t>(chunk * kChunkColumnBytes + lane * kChunkBytes),
                bytes + in_page + lane * kChunkBytes);
    }
    if constexpr (kHasScales) {
      constexpr int kLanesARun = kScaleRunBytes / kChunkBytes;
      if (lane < kScaleRuns * kLanesARun) {
        CpAsync16(shared + ScaleRun(0) + static_cast<uint32_t>(kChunkBytes * lane),
                  ScalesInPage(page, lane / kLanesARun, index) + lane % kLanesARun * kChunkBytes);
      }
    }
  }
  // K of 16 slots and the dims of kUnits units from `unit` on, or up to the last. In each unit
  // fragments 0 and 1 are B of slots 0-7, and 2 and 3 of slots 8-15.
  __device__ __forceinline__ static void LoadK(uint32_t (&k)[K::kUnits][4], uint32_t strip, int map,
                                               int unit, const uint32_t (&zeros)[2], int lane) {
    const uint32_t begin = strip + kColumnBytes * static_cast<uint32_t>(map * kKChunks);
    K::Load(k, lane, zeros, [&](int row, int half) {
      return begin + OffsetIn(kKChunks, kKChunks, unit / kKChunk, row, half);
    });
  }
  // The same as A of all 16 slots.
  __device__ __forceinline__ static void LoadKRows(uint32_t (&k)[K::kUnits][4], uint32_t strip,
                                                   int first, int map, int unit,
                                                   const uint32_t (&zeros)[2], int lane) {
    const uint32_t begin = strip + kColumnBytes * static_cast<uint32_t>(map * kKChunks);
    LoadRows<K>(k, lane, zeros, [&](int row, int half) {
      return begin + OffsetIn(kKChunks, kKChunks, unit / kKChunk, first + row, half);
    });
  }
  // V of 16 slots and columns [unit, unit + 16 kUnits) of a part, or up to its last. In each unit
  // fragments 0 and 1 are B of the first product's columns, and 2 and 3 of the second's.
  __device__ __forceinline__ static void LoadV(uint32_t (&v)[V::kUnits][4], uint32_t strip,
                                               int part, int unit, const uint32_t (&zeros)[2],
                                               int lane) {
    constexpr int kOfPart = kVChunks / kVParts;
    V::Load(v, lane, zeros, [&](int row, int half) {
      return strip + kVBegin +
             OffsetIn(kVChunks, (part + 1) * kOfPart, part * kOfPart + unit / kVChunk, row, half);
    });
  }

  // The same as A: rows 0-7 are the first product's columns, and rows 8-15 the second's.
  __device__ __forceinline__ static void LoadVRows(uint32_t (&v)[V::kUnits][4], uint32_t strip,
                                                   int first, int part, int unit,
                                                   const uint32_t (&zeros)[2], int lane) {
    constexpr int kOfPart = kVChunks / kVParts;
    LoadRows<V>(v, lane, zeros, [&](int row, int half) {
      return strip + kVBegin +
             OffsetIn(kVChunks, (part + 1) * kOfPart, part * kOfPart + unit / kVChunk, first + row,
                      half);
    });
  }

  // Scales as they are stored, of the lane's four slots: 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t with t =
  // lane % 4.
  __device__ __forceinline__ static void LoadScales(float (&scales)[4], uint32_t strip, int run,
                                                    int lane) {
    const auto* of_run = reinterpret_cast<const float2*>(ScalesAt(strip, run)) + lane % 4;
    scales[0] = of_run[0].x;
    scales[1] = of_run[0].y;
    scales[2] = of_run[4].x;
    scales[3] = of_run[4].y;
  }
  // Those of slots lane / 4 and + 8.
  __device__ __forceinline__ static void LoadRowScales(float (&scales)[2], uint32_t strip,
                                                       int first, int run, int lane) {
    const float* of_run = ScalesAt(strip, run) + first + lane / 4;
    scales[0] = of_run[0];
    scales[1] = of_run[8];
  }
  // What LoadV needs of the lane's four slots.
  __device__ __forceinline__ static void LoadVZeros(uint32_t (&zeros)[2], uint32_t strip, int first,
                                                    int run, int lane) {
    zeros[0] = zeros[1] = 0;
    if constexpr (kHasScales && Codec::Description().v_bits == 4) {
      float scales[4];
      LoadScales(scales, strip + static_cast<uint32_t>(first) * sizeof(float), run, lane);
      zeros[0] = V::Zeros(scales[0], scales[1]);
      zeros[1] = V::Zeros(scales[2], scales[3]);
    }
  }
  // What LoadK needs of the lane's two slots.
  __device__ __forceinline__ static void LoadKZeros(uint32_t (&zeros)[2], uint32_t strip, int map,
                                                    int lane, int first = 0) {
    if constexpr (Codec::Description().k_bits == 4) {
      const float* of_map = ScalesAt(strip, map) + first + lane / 4;
      zeros[0] = K::Zeros(of_map[0], of_map[0]);
      zeros[1] = K::Zeros(of_map[8], of_map[8]);
    }
  }

  // Zeroes V and its scales in the strip's slots outside [begin, end): a weight of 0 does not hide
  // a NaN there.
  __device__ __forceinline__ static void ClearV(std::byte* strip, int begin, int end, int lane,
                                                int first = 0) {
    constexpr int kOfSlot = kHasScales ? kVParts : kVChunks;
    for (int i = lane; i < kStripSlots * kOfSlot; i += 32) {
      const int slot = i / kOfSlot;
      if (slot >= begin && slot < end) continue;
      if constexpr (kHasScales) {
        reinterpret_cast<float*>(strip + ScaleRun(kKMaps + i % kVParts))[first + slot] = 0.0f;
      } else {
        const int offset = KvImageOffset(kSlots, kVChunks, first + slot, i % kVChunks, 1);
        *reinterpret_cast<uint4*>(strip + kVBegin + kChunkBytes * offset) = make_uint4(0, 0, 0, 0);
      }
    }
  }

 private:
  // Offset of the chunk at `unit`, or of the next one if that is before `end`.
  __device__ __forceinline__ static uint32_t OffsetIn(int chunks, int end, int unit, int row,
                                                      int half) {
    return StripOffset<kSlots>(chunks, unit, row, unit + 1 < end ? half : 0);
  }
  __device__ __forceinline__ static const float* ScalesAt(uint32_t strip, int run) {
    const std::byte* begin = DynamicShared() + (strip - SharedAddress(DynamicShared()));
    return reinterpret_cast<const float*>(begin + ScaleRun(run));
  }
};

}  // namespace diffserve::cuda
