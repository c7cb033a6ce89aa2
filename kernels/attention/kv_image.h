// SPDX-License-Identifier: Apache-2.0
// A matrix of slots by dims in the layout of shared memory. Any part of it is copied without change
// and then read by ldmatrix, mma.sync or wgmma without bank conflicts.
//
// A matrix [slots][columns] is cut by columns into tiles of 128 bytes; the rest becomes at most
// one tile each of 64, 32 and 16 bytes (so no width wastes memory). A tile is [slots][its columns],
// row by row. In the index of each 16-byte chunk, the low bits are XORed with the next three:
// NVIDIA's 128-, 64- and 32-byte swizzles, and none for 16 bytes. A chunk is `chunk` numbers: 8 of
// 16 bits, 16 of 8.
//
// A strip is 16 consecutive slots of a page. It has the layout of a page of 16 slots, since each
// tile's 16 rows are contiguous and the swizzle repeats every 8 rows.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace diffserve {

inline constexpr int kStripSlots = 16;
inline constexpr int kImageChunkElements = 8;  // 16-bit numbers in the 16 bytes that ldmatrix reads
inline constexpr int kImageTileColumns = 64;   // 16-bit numbers per row of the widest tile

struct KvImageTile {
  int first_column;
  int columns;  // of 8, 4, 2 or 1 chunks
};

// The tile that holds `column` of a matrix `columns` wide (a multiple of a chunk).
DIFFSERVE_HOST_DEVICE constexpr KvImageTile KvImageTileOf(int columns, int column,
                                                          int chunk = kImageChunkElements) {
  const int rest = columns / (8 * chunk) * (8 * chunk);
  if (column < rest) return {column / (8 * chunk) * (8 * chunk), 8 * chunk};
  KvImageTile tile = {rest, 4 * chunk};
  while (columns - tile.first_column < tile.columns || column >= tile.first_column + tile.columns) {
    if (columns - tile.first_column >= tile.columns) tile.first_column += tile.columns;
    tile.columns /= 2;
  }
  return tile;
}

// Index of [row][column] of a matrix [rows][columns] in image form; rows is a multiple of 16.
DIFFSERVE_HOST_DEVICE constexpr int KvImageOffset(int rows, int columns, int row, int column,
                                                  int chunk = kImageChunkElements) {
  const KvImageTile tile = KvImageTileOf(columns, column, chunk);
  const int in_tile = row * tile.columns + column - tile.first_column;
  const int index = in_tile / chunk;
  const int swizzled = index ^ ((index >> 3) & (tile.columns / chunk - 1));
  return tile.first_column * rows + swizzled * chunk + in_tile % chunk;
}

}  // namespace diffserve
