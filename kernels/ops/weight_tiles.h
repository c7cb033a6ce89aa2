// SPDX-License-Identifier: Apache-2.0
// The order of int8 and int4 weights on a device. A tile is 8 output features (rows) of a group of
// 64 input features (kQuantGroup). A matrix is [row tiles][groups][tile]; rows beyond
// out_features and features beyond in_features hold some code.
//
// A lane reads its 16 codes of a tile at once: lane 4 r + t has row r, and of step s of
// mma.m16n8k16 and wgmma the features 16 s + 2 t + {0, 1, 8, 9}. So two tiles are the A operands of
// 16 rows, and activations are B operands in the order of their features. What is masked out of a
// word together, for the halves of a register, is two neighbouring features.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/ops/weight_format.h"

namespace diffserve {

inline constexpr int kTileRows = 8;
constexpr int64_t NumRowTiles(int64_t out_features) {
  return (out_features + kTileRows - 1) / kTileRows;
}

// weight = scale[output feature] * (code - Int8Panel::kZero). A word is a lane's step: features 0,
// 8, 1, 9 from its first.
struct Int8Tile {
  static constexpr int kBytes = kTileRows * kQuantGroup;

  static constexpr int CodeAt(int row, int feature) {
    return row * kQuantGroup + feature / 2 % 4 * 16 + feature / 16 * 4 + feature % 2 * 2 +
           feature / 8 % 2;
  }
};

// weight = scale[group][output feature] * (code - Int4Panel::kZero), scales in float16 after the
// codes. A word is two of a lane's steps, in its even and in its odd bytes.
struct Int4Tile {
  static constexpr int kScalesAt = kTileRows * kQuantGroup / 2;
  static constexpr int kBytes = kScalesAt + 2 * kTileRows;

  static constexpr int CodeAt(int row, int feature) {
    return row * kQuantGroup / 2 + feature / 2 % 4 * 8 + feature / 32 * 4 + feature % 2 * 2 +
           feature / 16 % 2;
  }
  static constexpr int CodeShift(int feature) { return feature / 8 % 2 * 4; }
  static constexpr int ScaleAt(int row) { return kScalesAt + row * 2; }
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
