// The bf16 pages of the CUDA backend, compiled by the host's compilers and by nvcc. A page of one
// layer and group is one contiguous run of bytes, K1 | K2 (if k_maps == 2) | V, and is stored the
// way shared memory wants it, so that any part of it is copied as it lies and then read by
// ldmatrix, mma.sync or wgmma without a bank conflict.
//
// Each of the three is a matrix [page_size slots][columns], cut by columns into tiles of 64, and
// what is left over into one of 32 and one of 16 (so no width wastes memory). A tile is
// [page_size][its columns], row by row; of each 16-byte chunk's index in it, the low bits are XORed
// with the next three: NVIDIA's 128-, 64- and 32-byte swizzles for 64, 32 and 16 columns.
//
// A strip is 16 consecutive slots of a page. It has the layout of a page of 16 slots, since each
// tile's 16 rows are contiguous and the swizzle repeats every 8 rows.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define DIFFSERVE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DIFFSERVE_HOST_DEVICE inline
#endif

namespace diffserve {

inline constexpr int kStripSlots = 16;
inline constexpr int kImageTileColumns = 64;   // of the widest tile
inline constexpr int kImageChunkElements = 8;  // 16 bytes, which ldmatrix reads and cp.async copies

struct KvImageTile {
  int first_column;
  int columns;  // 64, 32 or 16
};

// The tile that holds `column` of a matrix `columns` wide (a multiple of 16).
DIFFSERVE_HOST_DEVICE constexpr KvImageTile KvImageTileOf(int columns, int column) {
  const int rest = columns / kImageTileColumns * kImageTileColumns;
  if (column < rest) return {column / kImageTileColumns * kImageTileColumns, kImageTileColumns};
  const bool has_32 = columns - rest >= 32;
  if (has_32 && column < rest + 32) return {rest, 32};
  return {rest + (has_32 ? 32 : 0), 16};
}

// Element offset of [row][column] of a matrix [rows][columns] in image form; rows is a multiple of
// 16.
DIFFSERVE_HOST_DEVICE constexpr int KvImageOffset(int rows, int columns, int row, int column) {
  const KvImageTile tile = KvImageTileOf(columns, column);
  const int in_tile = row * tile.columns + column - tile.first_column;
  const int chunk = in_tile / kImageChunkElements;
  const int swizzled = chunk ^ ((chunk >> 3) & (tile.columns / kImageChunkElements - 1));
  return tile.first_column * rows + swizzled * kImageChunkElements + in_tile % kImageChunkElements;
}

struct KvImage {
  int page_size = 64;  // slots; a multiple of 16
  int num_groups = 0;
  int k_maps = 1;
  int head_dim = 0;  // a multiple of 16
  int v_dim = 0;     // a multiple of 16

  DIFFSERVE_HOST_DEVICE constexpr int KMapOffset(int map) const {
    return map * page_size * head_dim;
  }
  DIFFSERVE_HOST_DEVICE constexpr int VBegin() const { return KMapOffset(k_maps); }
  DIFFSERVE_HOST_DEVICE constexpr int PageElements() const {
    return page_size * (k_maps * head_dim + v_dim);
  }
  DIFFSERVE_HOST_DEVICE constexpr int64_t PageBytes() const {
    return int64_t{2} * PageElements();
  }  // one layer, one group

  // Element offsets within a page.
  DIFFSERVE_HOST_DEVICE constexpr int KOffset(int map, int dim, int slot) const {
    return KMapOffset(map) + KvImageOffset(page_size, head_dim, slot, dim);
  }
  DIFFSERVE_HOST_DEVICE constexpr int VOffset(int dim, int slot) const {
    return VBegin() + KvImageOffset(page_size, v_dim, slot, dim);
  }
};

// The pages of one layer: page `id` of group g starts at base + (id * num_groups + g) *
// PageBytes().
struct KvImageLayer {
  std::byte* base = nullptr;
  KvImage image;

  DIFFSERVE_HOST_DEVICE uint16_t* Page(int32_t page_id, int group) const {
    return reinterpret_cast<uint16_t*>(base + (int64_t{page_id} * image.num_groups + group) *
                                                  image.PageBytes());
  }
};

}  // namespace diffserve
