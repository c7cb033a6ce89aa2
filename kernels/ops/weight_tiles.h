// SPDX-License-Identifier: Apache-2.0
// The order of int8 and int4 weights on a device. A tile is 16 output features (rows) of a group of
// 64 input features (kQuantGroup). A matrix is [row tiles][groups][tile], with zeros up to a
// multiple of kTileRowsPadded rows.
//
// A lane reads its 16 or 32 bytes of a tile in words that hold the A operand of mma.m16n8k16 four
// times, for steps 0 to 3. Lane 4 r + t has rows r and r + 8, and of step s the features 16 t + 4 s
// + {0, 1, 2, 3}: so the lane reads 16 neighbouring activations as its B operand. In a word, bytes
// 0 and 2 are two neighbouring features of row r, bytes 1 and 3 those of row r + 8.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/ops/weight_format.h"

namespace diffserve {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowsPadded = 64;
constexpr int64_t NumRowTiles(int64_t out_features) {
  return (out_features + kTileRowsPadded - 1) / kTileRowsPadded * (kTileRowsPadded / kTileRows);
}

// weight = scale[output feature] * code, in two's complement.
struct Int8Tile {
  static constexpr int kHalfBytes = 512;  // steps 0 and 1, then 2 and 3
  static constexpr int kBytes = 2 * kHalfBytes;

  static constexpr int CodeAt(int row, int feature) {
    const int lane = row % 8 * 4 + feature / 16, step = feature / 4 % 4, pair = feature / 2 % 2;
    return step / 2 * kHalfBytes + lane * 16 + (step % 2 * 2 + pair) * 4 + feature % 2 * 2 +
           row / 8;
  }
};

// weight = scale[group][output feature] * (code - Int4Panel::kZero), scales in float16 after the
// codes: of row r and of row r + 8 together.
struct Int4Tile {
  static constexpr int kScalesAt = 512;
  static constexpr int kBytes = kScalesAt + 2 * kTileRows;

  static constexpr int CodeAt(int row, int feature) {
    const int lane = row % 8 * 4 + feature / 16, step = feature / 4 % 4;
    return lane * 16 + step * 4 + feature % 2 * 2 + row / 8;
  }
  static constexpr int CodeShift(int feature) { return feature / 2 % 2 * 4; }
  static constexpr int ScaleAt(int row) { return kScalesAt + row % 8 * 4 + row / 8 * 2; }
};

constexpr int64_t TileBytes(WeightFormat format) {
  return format == WeightFormat::kInt8 ? Int8Tile::kBytes : Int4Tile::kBytes;
}

namespace cpu {
class PackedLinear;
// Writes row tile `tile` of a matrix that the CPU's packer made, for any level. `to` has
// NumQuantGroups(in_features) * TileBytes(format) bytes. REQUIRES: the format is quantised.
void WriteWeightTiles(const PackedLinear& weight, int64_t tile, std::byte* to);
}  // namespace cpu

}  // namespace diffserve
