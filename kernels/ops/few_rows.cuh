// SPDX-License-Identifier: Apache-2.0
// How a warp of FewRowsKernel reads weights: one type per format. Fetch asks for a piece of a tile
// (16 output features, in two strips of eight that lie anywhere), some kGroups groups of input
// features. Read gives what a lane has of a group, Fragments the A operands in it, and XFragments
// the B operands in the same order of the input features.
#pragma once

#include <type_traits>

#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/few_rows_cuda.h"
#include "kernels/ops/weight_lanes.cuh"

namespace diffserve::cuda {

constexpr int kFewRowsGroup = kQuantGroup;  // input features that parts are made of
constexpr int kStripRows = kTileRows;
// Bytes of a token's group of x: neither ldmatrix nor reads of 16 bytes have bank conflicts.
constexpr int kXPitch = kFewRowsGroup * 2 + 16;

// Output features [row, row + count[0]) and [row + second, row + second + count[1]).
struct FewRowsTile {
  int row = 0;
  int second = kStripRows;
  int count[2] = {0, 0};
};

__device__ __forceinline__ FewRowsTile TileOf(const FewRowsTiles& tiles, int unit, int end) {
  FewRowsTile tile;
  if (unit >= end) return tile;
  const int rows = tiles.rows;
  tile.row = unit * kStripRows;
  tile.count[0] = min(kStripRows, rows - tile.row);
  if (tiles.form == FewRowsForm::kAppend) {
    tile.row *= 2;
    if (tile.row < tiles.paired_rows) {
      const int in_head = tile.row % tiles.head_dim;
      tile.row -= in_head / 2;
      tile.second = tiles.head_dim / 2;
    }
    tile.count[1] = tile.count[0] = kStripRows;
  } else if (tiles.form == FewRowsForm::kSiluMul) {
    tile.second = rows;
    tile.count[1] = tile.count[0];
  } else if (unit + 1 < end) {
    tile.count[1] = min(kStripRows, rows - tile.row - kStripRows);
  }
  return tile;
}

// x in the order of its features, as a lane sees it: of the first group and the first eight tokens.
struct OrderedX {
  using X = uint32_t;
  __device__ __forceinline__ static X XOf(const std::byte* x, int lane, int x_tokens) {
    return SharedAddress(x) +
           static_cast<uint32_t>(min(lane % 8, x_tokens - 1) * kXPitch + lane / 8 * 16);
  }
  __device__ __forceinline__ static void XFragments(X x, int pair, uint32_t (&b)[4]) {
    LdMatrix4(b, x + static_cast<uint32_t>(pair * 64));
  }
};

struct BFloat16Pieces : OrderedX {
  static constexpr int kGroups = 2;
  static constexpr int kPitch = kGroups * kFewRowsGroup * 2 + 16;  // bytes; free of bank conflicts
  static constexpr int kStageBytes = 2 * kStripRows * kPitch;
  static constexpr bool kAreCodes = false;
  static constexpr bool kScalesGroups = false;
  static constexpr bool kScalesRows = false;
  static constexpr float kUnit = 1;

  uint32_t stages;  // of the warp, in shared memory
  int lane;

  __device__ BFloat16Pieces(std::byte* stages_, int lane_)
      : stages(SharedAddress(stages_)), lane(lane_) {}

  // Input features [feature, end), at most a piece of them, of which those beyond in_features are
  // zeros. Features beyond the tile's counts keep what was there.
  __device__ __forceinline__ void Fetch(const FewRowsProduct& product, const FewRowsTile& tile,
                                        int feature, int end, int stage) const {
    constexpr int kLanes = kGroups * kFewRowsGroup / 8;  // per row
    const int column = feature + lane % kLanes * 8;
    if (column >= end) return;
    const int first_row = lane / kLanes;
    const int64_t in_features = product.in_features;
    const BFloat16* from = static_cast<const BFloat16*>(product.weight) +
                           (tile.row + first_row) * in_features + column;
    const uint32_t to = stages + static_cast<uint32_t>(stage * kStageBytes + first_row * kPitch +
                                                       lane % kLanes * 16);
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
      for (int row = 0; row < kStripRows; row += 32 / kLanes) {
        if (first_row + row >= tile.count[strip]) continue;
        const uint32_t at = to + static_cast<uint32_t>((strip * kStripRows + row) * kPitch);
        if (column < product.in_features) {
          CpAsync16(at, from + (strip * tile.second + row) * in_features);
        } else {
          StoreShared4(at, {0, 0, 0, 0});
        }
      }
    }
  }

  struct Group {
    uint32_t at;
    // The operands of steps 2 pair and 2 pair + 1 (16 input features each).
    __device__ __forceinline__ void Fragments(int pair, uint32_t (&a)[2][4]) const {
      LdMatrix4(a[0], at + static_cast<uint32_t>(pair * 64));
      LdMatrix4(a[1], at + static_cast<uint32_t>(pair * 64 + 32));
    }
  };
  __device__ __forceinline__ Group Read(int stage, int group) const {
    return {stages + static_cast<uint32_t>(stage * kStageBytes + lane % 16 * kPitch +
                                           lane / 16 * 16 + group * kFewRowsGroup * 2)};
  }
};

// What the formats of codes share: the lane's codes of both strips.
template <typename Lane>
struct CodeGroup {
  Lane strips[2];
  __device__ __forceinline__ void Fragments(int pair, uint32_t (&a)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int strip = 0; strip < 2; ++strip)
        strips[strip].Widen(2 * pair + i, a[i][strip], a[i][2 + strip]);
    }
  }
  __device__ __forceinline__ float Scale(int strip) const { return strips[strip].Scale(); }
};

// Int8Lane or Int4Lane: a strip's groups are neighbours in memory.
template <typename Lane, int kGroupsOfPiece>
struct TilePieces : OrderedX {
  using Tile = typename Lane::Tile;
  static constexpr int kGroups = kGroupsOfPiece;
  static constexpr int kStripBytes = kGroups * Tile::kBytes;
  static constexpr int kStageBytes = 2 * kStripBytes;
  static constexpr bool kAreCodes = true;
  static constexpr bool kScalesGroups = Lane::kScalesGroups;
  static constexpr bool kScalesRows = !kScalesGroups;
  static constexpr float kUnit = Lane::kUnit;

  std::byte* stages;
  int lane;

  __device__ TilePieces(std::byte* stages_, int lane_) : stages(stages_), lane(lane_) {}

  __device__ __forceinline__ void Fetch(const FewRowsProduct& product, const FewRowsTile& tile,
                                        int feature, int end, int stage) const {
    const int bytes = min(kGroups, (end - feature) / kFewRowsGroup) * Tile::kBytes;
    const int64_t row_bytes = product.StripBytes();
    const std::byte* from = static_cast<const std::byte*>(product.weight) +
                            tile.row / kStripRows * row_bytes +
                            feature / kFewRowsGroup * Tile::kBytes + lane * 16;
    const uint32_t to = SharedAddress(stages + stage * kStageBytes + lane * 16);
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      if (tile.count[strip] == 0) continue;
#pragma unroll
      for (int at = 0; at < kStripBytes; at += 32 * 16) {
        if (lane * 16 + at < bytes) {
          CpAsync16(to + static_cast<uint32_t>(strip * kStripBytes + at),
                    from + strip * (tile.second / kStripRows) * row_bytes + at);
        }
      }
    }
  }

  __device__ __forceinline__ CodeGroup<Lane> Read(int stage, int group) const {
    CodeGroup<Lane> read;
    const std::byte* tile = stages + stage * kStageBytes + group * Tile::kBytes;
    read.strips[0].Read(tile, lane);
    read.strips[1].Read(tile + kStripBytes, lane);
    return read;
  }
};
using Int8Pieces = TilePieces<Int8Lane, 4>;
using Int4Pieces = TilePieces<Int4Lane, 8>;

// Rows of codes, as cuBLASLt takes them. Odd rows lie with neighbouring groups exchanged, so that
// reads have no bank conflicts.
struct Fp8Pieces {
  static constexpr int kGroups = 4;
  static constexpr int kRowBytes = kGroups * kFewRowsGroup;
  static constexpr int kStripBytes = kStripRows * kRowBytes;
  static constexpr int kStageBytes = 2 * kStripBytes;
  static constexpr bool kAreCodes = true;
  static constexpr bool kScalesGroups = false;
  static constexpr bool kScalesRows = true;
  static constexpr float kUnit = Fp8Lane::kUnit;

  std::byte* stages;
  int lane;

  __device__ Fp8Pieces(std::byte* stages_, int lane_) : stages(stages_), lane(lane_) {}

  // Features beyond in_features, where x is 0, may keep what was there: any code is a finite
  // number.
  __device__ __forceinline__ void Fetch(const FewRowsProduct& product, const FewRowsTile& tile,
                                        int feature, int end, int stage) const {
    constexpr int kLanes = kRowBytes / 16;  // per row
    const int64_t row_bytes = Fp8Padded(product.in_features);
    const int column = feature + lane % kLanes * 16, first_row = lane / kLanes;
    if (column >= end || column >= row_bytes) return;
    const std::byte* from = static_cast<const std::byte*>(product.weight) +
                            (tile.row + first_row) * row_bytes + column;
    const uint32_t to = SharedAddress(stages + stage * kStageBytes + first_row * kRowBytes +
                                      ((lane % kLanes * 16) ^ (first_row * kFewRowsGroup)));
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      if (tile.count[strip] == 0) continue;
#pragma unroll
      for (int row = 0; row < kStripRows; row += 32 / kLanes) {
        CpAsync16(to + static_cast<uint32_t>(strip * kStripBytes + row * kRowBytes),
                  from + (strip * tile.second + row) * row_bytes);
      }
    }
  }

  __device__ __forceinline__ CodeGroup<Fp8Lane> Read(int stage, int group) const {
    CodeGroup<Fp8Lane> read;
    const int row = lane / 4;
    const std::byte* at = stages + stage * kStageBytes + row * kRowBytes +
                          ((group ^ row % 2) * kFewRowsGroup) + lane % 4 * 16;
    read.strips[0].codes = *reinterpret_cast<const Words4*>(at);
    read.strips[1].codes = *reinterpret_cast<const Words4*>(at + kStripBytes);
    return read;
  }

  // A lane has 16 neighbouring features of weights, and so of x.
  using X = const std::byte*;
  __device__ __forceinline__ static X XOf(const std::byte* x, int lane, int x_tokens) {
    return x + min(lane / 4, x_tokens - 1) * kXPitch + lane % 4 * 32;
  }
  __device__ __forceinline__ static void XFragments(X x, int pair, uint32_t (&b)[4]) {
    const Words4 words = *reinterpret_cast<const Words4*>(x + pair * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = words.word[i];
  }
};

// use(std::type_identity<Pieces>()) with what reads the format. REQUIRES: a device has the format.
template <typename Use>
auto WithPieces(WeightFormat format, const Use& use) {
  if (format == WeightFormat::kInt8) return use(std::type_identity<Int8Pieces>());
  if (format == WeightFormat::kInt4) return use(std::type_identity<Int4Pieces>());
  if (format == WeightFormat::kFp8E4M3) return use(std::type_identity<Fp8Pieces>());
  return use(std::type_identity<BFloat16Pieces>());
}

}  // namespace diffserve::cuda
