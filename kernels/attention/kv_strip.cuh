// A strip (16 slots of one page: K1 | K2 | V) on its way from an image page into shared memory, and
// where ldmatrix finds its rows there. All by one warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention/kv_format.h"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

// Byte offset, in a matrix [16][columns] in image form, of the 8 elements from column `unit + 8 *
// half` of `row`. `unit` is a multiple of 16 and known when compiled; what depends on the lane is
// then one XOR.
__device__ __forceinline__ uint32_t StripOffset(int columns, int unit, int row, int half) {
  const KvImageTile tile = KvImageTileOf(columns, unit);
  if (tile.columns == kImageTileColumns) {
    const int in_lane = row * 128 + ((half ^ (row & 7)) << 4);
    return static_cast<uint32_t>(tile.first_column * kStripSlots * 2 +
                                 (in_lane ^ ((unit - tile.first_column) * 2)));
  }
  return static_cast<uint32_t>(
      2 * KvImageOffset(kStripSlots, columns, row, unit + half * kImageChunkElements));
}

// A device's loads of each codec (kv_codec.h): fragments of 16 by 16 numbers from where a lane's
// row of them lies in shared memory, as mma wants them for K and for V.
template <typename Codec>
struct KvFragments;
template <>
struct KvFragments<BFloat16Codec> {
  __device__ __forceinline__ static void LoadK(uint32_t (&k)[4], uint32_t row) {
    LdMatrix4(k, row);
  }
  __device__ __forceinline__ static void LoadV(uint32_t (&v)[4], uint32_t row) {
    LdMatrix4Transposed(v, row);
  }
};

template <typename Codec>
__device__ __forceinline__ const typename Codec::Element* ImagePage(const PagedKv& kv, int32_t id,
                                                                    int group) {
  return kv.PageAs<Codec, KvArrangement::kImage>(id, group);
}

// One group's page of a shape that is known when compiled.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
constexpr KvFormat ImageOf(int page_size) {
  return {page_size, 1, kKMaps, kHeadDim, kVDim, Codec::Description(), KvArrangement::kImage};
}

// kVDim 0: K alone of the strip.
template <typename Codec_, int kHeadDim, int kVDim, int kKMaps, int kPageSize>
struct KvStrip {
  using Codec = Codec_;
  using Element = typename Codec::Element;
  static constexpr bool kHasV = kVDim > 0;
  static_assert(sizeof(Element) == 2, "the swizzles below are those of 16 bits");
  static constexpr int kColumns = kKMaps * kHeadDim + kVDim;
  static constexpr uint32_t kBytes = static_cast<uint32_t>(
      ImageOf<Codec, kHeadDim, kVDim, kKMaps>(kStripSlots).PageBytes());
  static constexpr uint32_t kVBegin = 2 * kStripSlots * kKMaps * kHeadDim;

  // The matrix that holds a column of K1 | K2 | V side by side.
  struct Matrix {
    int first_column;
    int columns;
  };
  __device__ __forceinline__ static constexpr Matrix MatrixOf(int column) {
    if (column >= kKMaps * kHeadDim) return {kKMaps * kHeadDim, kVDim};
    return {column / kHeadDim * kHeadDim, kHeadDim};
  }

  // Element offset in a page of strip `index`'s part of the tile that holds a column.
  __device__ __forceinline__ static int TileInPage(int column, int index) {
    const Matrix matrix = MatrixOf(column);
    const KvImageTile tile = KvImageTileOf(matrix.columns, column - matrix.first_column);
    return (matrix.first_column + tile.first_column) * kPageSize +
           index * kStripSlots * tile.columns;
  }
  __device__ __forceinline__ static int TileBegin(int column) {
    const Matrix matrix = MatrixOf(column);
    return matrix.first_column +
           KvImageTileOf(matrix.columns, column - matrix.first_column).first_column;
  }

  // 16 bytes a lane and instruction. The strip is there after CpAsyncWait by all lanes and
  // __syncwarp.
  __device__ __forceinline__ static void CopyByLanes(uint32_t shared, const Element* page,
                                                     int index, int lane) {
#pragma unroll
    for (int column = 0; column < kColumns; column += 16) {
      const int in_page = TileInPage(column, index) + (column - TileBegin(column)) * kStripSlots +
                          lane * kImageChunkElements;
      CpAsync16(
          shared + static_cast<uint32_t>(2 * (column * kStripSlots + lane * kImageChunkElements)),
          page + in_page);
    }
  }
  // One copy a tile, by one thread. The strip is there when the barrier's phase is over.
  __device__ __forceinline__ static void CopyInBulk(uint32_t shared, const Element* page, int index,
                                                    uint32_t barrier) {
    BarrierArriveExpect(barrier, kBytes);
#pragma unroll
    for (int column = 0; column < kColumns; column += 16) {
      if (TileBegin(column) != column) continue;
      const Matrix matrix = MatrixOf(column);
      const int columns = KvImageTileOf(matrix.columns, column - matrix.first_column).columns;
      BulkCopy(shared + static_cast<uint32_t>(2 * column * kStripSlots),
               page + TileInPage(column, index), static_cast<uint32_t>(2 * columns * kStripSlots),
               barrier);
    }
  }

  // K of 16 slots and dims [unit, unit + 16): fragments 0 and 1 are B of slots 0-7, 2 and 3 of
  // slots 8-15.
  __device__ __forceinline__ static void LoadK(uint32_t (&k)[4], uint32_t strip, int map, int unit,
                                               int lane) {
    const uint32_t begin = static_cast<uint32_t>(2 * kStripSlots * map * kHeadDim);
    KvFragments<Codec>::LoadK(
        k, strip + (begin + StripOffset(kHeadDim, unit, lane / 16 * 8 + lane % 8, lane / 8 % 2)));
  }
  // V of 16 slots and columns [unit, unit + 16): fragments 0 and 1 are B of columns 0-7, 2 and 3 of
  // 8-15.
  __device__ __forceinline__ static void LoadV(uint32_t (&v)[4], uint32_t strip, int unit,
                                               int lane) {
    KvFragments<Codec>::LoadV(
        v, strip + (kVBegin + StripOffset(kVDim, unit, lane / 8 % 2 * 8 + lane % 8, lane / 16)));
  }

  // V of slots [num_slots, 16) becomes 0: a weight of 0 does not hide a NaN there.
  __device__ __forceinline__ static void ClearV(std::byte* strip, int num_slots, int lane) {
    constexpr int kChunks = kVDim / kImageChunkElements;
    for (int i = lane; i < (kStripSlots - num_slots) * kChunks; i += 32) {
      const int offset = KvImageOffset(kStripSlots, kVDim, num_slots + i / kChunks,
                                       i % kChunks * kImageChunkElements);
      *reinterpret_cast<uint4*>(strip + kVBegin + 2 * offset) = make_uint4(0, 0, 0, 0);
    }
  }
};

}  // namespace diffserve::cuda
