// A strip (16 slots of one page: K1 | K2 | V) on its way from an image page into shared memory, and
// where ldmatrix finds its rows there. All by one warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention/kv_format.h"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

// Numbers in 16 bytes.
template <typename Codec>
inline constexpr int kChunkOf = 128 / Codec::Description().k_bits;

// Byte offset, in a matrix [16][columns] in image form, of the chunk that begins at column `unit`
// of `row`, or of the one behind it. `unit` is a multiple of 2 chunks and known when compiled; what
// depends on the lane is then one XOR.
template <typename Codec>
__device__ __forceinline__ uint32_t StripOffset(int columns, int unit, int row, int half) {
  constexpr int kChunk = kChunkOf<Codec>;
  constexpr int kBytes = sizeof(typename Codec::Element);
  const KvImageTile tile = KvImageTileOf(columns, unit, kChunk);
  if (tile.columns == 8 * kChunk) {
    const int in_lane = row * 128 + ((half ^ (row & 7)) << 4);
    return static_cast<uint32_t>(tile.first_column * kStripSlots * kBytes +
                                 (in_lane ^ ((unit - tile.first_column) * kBytes)));
  }
  return static_cast<uint32_t>(
      kBytes * KvImageOffset(kStripSlots, columns, row, unit + half * kChunk, kChunk));
}

// A device's loads of each codec (kv_codec.h): fragments of 16 by 16 numbers, as mma wants them of
// K and of V, kUnits side by side at a time. They may take dims of K and columns of V in an order
// of their own: Q gives the operand that fits K, and column 2 t + e of the i'th product of a unit
// is column OutColumn(t, e, i) of V.
template <typename Codec>
struct KvFragments;

template <>
struct KvFragments<BFloat16Codec> {
  static constexpr int kUnits = 1;

  // Of dims 0-15: those that meet the lower (part 0) or the upper fragment.
  __device__ __forceinline__ static uint32_t Q(const uint16_t* q, int part, int lane) {
    return *reinterpret_cast<const uint32_t*>(q + 8 * part + lane % 4 * 2);
  }
  // `offset`: of the lane's row, by (row, half).
  template <typename Offset>
  __device__ __forceinline__ static void LoadK(uint32_t (&k)[kUnits][4], int lane,
                                               const Offset& offset) {
    LdMatrix4(k[0], offset(lane / 16 * 8 + lane % 8, lane / 8 % 2));
  }
  template <typename Offset>
  __device__ __forceinline__ static void LoadV(uint32_t (&v)[kUnits][4], int lane,
                                               const Offset& offset) {
    LdMatrix4Transposed(v[0], offset(lane / 8 % 2 * 8 + lane % 8, lane / 16));
  }
  __device__ __forceinline__ static constexpr int OutColumn(int t, int e, int product) {
    return 8 * product + 2 * t + e;
  }
};

// Codes become bfloat16, which holds them exactly, in registers. A lane's four neighbouring bytes
// are the dims of its two fragments of K, even ones and odd ones; of V, whose pairs of columns
// ldmatrix turns together, the columns of two products.
template <>
struct KvFragments<Int8Codec> {
  static constexpr int kUnits = 2;

  __device__ __forceinline__ static uint32_t Q(const uint16_t* q, int part, int lane) {
    const uint2 dims = *reinterpret_cast<const uint2*>(q + lane % 4 * 4);
    return part == 0 ? (dims.x & 0xffff) | dims.y << 16 : dims.x >> 16 | (dims.y & 0xffff0000u);
  }
  template <typename Offset>
  __device__ __forceinline__ static void LoadK(uint32_t (&k)[kUnits][4], int lane,
                                               const Offset& offset) {
    uint32_t codes[4];
    LdMatrix4(codes, offset(lane / 8 % 2 * 8 + lane % 8, lane / 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      k[i / 2][i % 2 * 2] = Widen<kUnsigned>(codes[i]);
      k[i / 2][i % 2 * 2 + 1] = Widen<kUnsigned>(codes[i] >> 8);
    }
  }
  template <typename Offset>
  __device__ __forceinline__ static void LoadV(uint32_t (&v)[kUnits][4], int lane,
                                               const Offset& offset) {
    uint32_t codes[4];
    LdMatrix4Transposed(codes, offset(lane / 8 % 2 * 8 + lane % 8, lane / 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i / 2][i % 2] = Widen<kSigned>(codes[i]);
      v[i / 2][i % 2 + 2] = Widen<kSigned>(codes[i] >> 8);
    }
  }
  __device__ __forceinline__ static constexpr int OutColumn(int t, int e, int product) {
    return 4 * t + 2 * e + product;
  }

 private:
  // -256 twice and -128 twice, in bfloat16; bit 7 of a code turns each into the other.
  static constexpr uint32_t kUnsigned = 0xc380c380u;
  static constexpr uint32_t kSigned = 0xc300c300u;
  // Bytes 0 and 2: 128 + the low 7 bits, and what that is too large by.
  template <uint32_t kExcess>
  __device__ __forceinline__ static uint32_t Widen(uint32_t codes) {
    return AddBFloat16((codes & 0x007f007fu) | 0x43004300u, (codes & 0x00800080u) ^ kExcess);
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
  KvCodec codec = Codec::Description();
  if (codec.scale_bits > 0) codec.scale_group = kHeadDim;
  return {page_size, 1, kKMaps, kHeadDim, kVDim, codec, KvArrangement::kImage};
}

// Of K1 | K2 | V, and their scales, or, kKAlone, without V, whose place before scales stays empty.
template <typename Codec_, int kHeadDim, int kVDim, int kKMaps, int kPageSize, bool kKAlone = false>
struct KvStrip {
  using Codec = Codec_;
  using Element = typename Codec::Element;
  using Fragments = KvFragments<Codec>;
  static constexpr bool kHasV = !kKAlone;
  static constexpr bool kHasScales = Codec::Description().scale_bits > 0;
  static constexpr int kChunk = kChunkOf<Codec>;
  static constexpr uint32_t kElementBytes = sizeof(Element);
  static constexpr int kColumns = kKMaps * kHeadDim + (kHasV ? kVDim : 0);
  static constexpr KvFormat kPage = ImageOf<Codec, kHeadDim, kVDim, kKMaps>(kPageSize);
  static constexpr KvFormat kFormat = ImageOf < Codec, kHeadDim, kHasV || kHasScales ? kVDim : 0,
                            kKMaps > (kStripSlots);
  static constexpr uint32_t kBytes = static_cast<uint32_t>(kFormat.PageBytes());
  static constexpr uint32_t kVBegin = kElementBytes * kStripSlots * kKMaps * kHeadDim;
  static constexpr int kVParts = kHasScales ? kVDim / kHeadDim : 1;  // that have a scale each
  static constexpr uint32_t kScaleRunBytes = kStripSlots * sizeof(float);
  static constexpr int kScaleRuns = kHasScales ? kKMaps + (kHasV ? kVParts : 0) : 0;

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
    const KvImageTile tile = KvImageTileOf(matrix.columns, column - matrix.first_column, kChunk);
    return (matrix.first_column + tile.first_column) * kPageSize +
           index * kStripSlots * tile.columns;
  }
  __device__ __forceinline__ static int TileBegin(int column) {
    const Matrix matrix = MatrixOf(column);
    return matrix.first_column +
           KvImageTileOf(matrix.columns, column - matrix.first_column, kChunk).first_column;
  }
  // Of 16 columns, which lie together.
  __device__ __forceinline__ static int ColumnsInPage(int column, int index) {
    return TileInPage(column, index) + (column - TileBegin(column)) * kStripSlots;
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

  // 16 bytes a lane and instruction. The strip is there after CpAsyncWait by all lanes and
  // __syncwarp.
  __device__ __forceinline__ static void CopyByLanes(uint32_t shared, const Element* page,
                                                     int index, int lane) {
    constexpr int kLanes = 16 * kElementBytes;  // that copy 16 columns
#pragma unroll
    for (int column = 0; column < kColumns; column += 512 / kLanes) {
      int in_page = ColumnsInPage(column, index);
      if constexpr (kLanes < 32) {
        if (lane >= kLanes && column + 16 >= kColumns) break;
        if (lane >= kLanes) in_page = ColumnsInPage(column + 16, index);
      }
      in_page += lane % kLanes * kChunk;
      CpAsync16(shared + static_cast<uint32_t>(static_cast<int>(kElementBytes) *
                                               (column * kStripSlots + lane * kChunk)),
                page + in_page);
    }
    if constexpr (kHasScales) {
      constexpr int kLanesARun = kScaleRunBytes / 16;
      if (lane < kScaleRuns * kLanesARun) {
        CpAsync16(shared + ScaleRun(0) + static_cast<uint32_t>(16 * lane),
                  ScalesInPage(page, lane / kLanesARun, index) + lane % kLanesARun * 16);
      }
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
      const int columns =
          KvImageTileOf(matrix.columns, column - matrix.first_column, kChunk).columns;
      BulkCopy(shared + kElementBytes * static_cast<uint32_t>(column * kStripSlots),
               page + TileInPage(column, index),
               kElementBytes * static_cast<uint32_t>(columns * kStripSlots), barrier);
    }
#pragma unroll
    for (int run = 0; run < kScaleRuns; ++run)
      BulkCopy(shared + ScaleRun(run), ScalesInPage(page, run, index), kScaleRunBytes, barrier);
  }

  // K of 16 slots and dims [unit, unit + 16 kUnits), or up to the last: of each unit, fragments 0
  // and 1 are B of slots 0-7, 2 and 3 of slots 8-15.
  __device__ __forceinline__ static void LoadK(uint32_t (&k)[Fragments::kUnits][4], uint32_t strip,
                                               int map, int unit, int lane) {
    const uint32_t begin = kElementBytes * static_cast<uint32_t>(kStripSlots * map * kHeadDim);
    Fragments::LoadK(k, lane, [&](int row, int half) {
      return strip + begin + OffsetIn(kHeadDim, kHeadDim, unit, row, half);
    });
  }
  // V of 16 slots and columns [unit, unit + 16 kUnits) up to `end`: of each unit, fragments 0 and 1
  // are B of the first product's columns, 2 and 3 of the second's.
  __device__ __forceinline__ static void LoadV(uint32_t (&v)[Fragments::kUnits][4], uint32_t strip,
                                               int unit, int end, int lane) {
    Fragments::LoadV(v, lane, [&](int row, int half) {
      return strip + kVBegin + OffsetIn(kVDim, end, unit, row, half);
    });
  }

  // Of the lane's four slots, 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t with t = lane % 4.
  __device__ __forceinline__ static void LoadScales(float (&scales)[4], uint32_t strip, int run,
                                                    int lane) {
    const std::byte* begin = DynamicShared() + (strip - SharedAddress(DynamicShared()));
    const auto* of_run = reinterpret_cast<const float2*>(begin + ScaleRun(run)) + lane % 4;
    scales[0] = of_run[0].x;
    scales[1] = of_run[0].y;
    scales[2] = of_run[4].x;
    scales[3] = of_run[4].y;
  }

  // What a weight of 0 does not hide, of slots [num_slots, 16), becomes 0: a NaN in V, or in its
  // scales.
  __device__ __forceinline__ static void ClearV(std::byte* strip, int num_slots, int lane) {
    if constexpr (kHasScales) {
      for (int i = lane; i < (kStripSlots - num_slots) * kVParts; i += 32) {
        auto* run = reinterpret_cast<float*>(strip + ScaleRun(kKMaps + i % kVParts));
        run[num_slots + i / kVParts] = 0.0f;
      }
    } else {
      constexpr int kChunks = kVDim / kChunk;
      for (int i = lane; i < (kStripSlots - num_slots) * kChunks; i += 32) {
        const int offset = KvImageOffset(kStripSlots, kVDim, num_slots + i / kChunks,
                                         i % kChunks * kChunk, kChunk);
        *reinterpret_cast<uint4*>(strip + kVBegin + kElementBytes * offset) = make_uint4(0, 0, 0,
                                                                                         0);
      }
    }
  }

 private:
  // Of the chunk at `unit` or of the one behind it, if that is before `end`.
  __device__ __forceinline__ static uint32_t OffsetIn(int columns, int end, int unit, int row,
                                                      int half) {
    return StripOffset<Codec>(columns, unit, row, unit + kChunk < end ? half : 0);
  }
};

}  // namespace diffserve::cuda
