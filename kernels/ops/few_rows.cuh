// SPDX-License-Identifier: Apache-2.0
// How a warp of FewRowsKernel reads weights: one type per format. Fetch asks for a piece of a tile
// (16 output features, in two strips of eight that lie anywhere); Fragments gives what it holds as
// A operands.
#pragma once

#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/few_rows_cuda.h"

namespace diffserve::cuda {

constexpr int kFewRowsGroup = 64;  // input features that parts are made of
constexpr int kStripRows = 8;

// Output features [row, row + count[0]) and [row + second, row + second + count[1]).
struct FewRowsTile {
  int row = 0;
  int second = kStripRows;
  int count[2] = {0, 0};
};

struct BFloat16Pieces {
  static constexpr int kGroups = 2;                                // of a piece
  static constexpr int kPitch = kGroups * kFewRowsGroup * 2 + 16;  // bytes; free of bank conflicts
  static constexpr int kStageBytes = 2 * kStripRows * kPitch;

  uint32_t stages;  // of the warp, in shared memory
  int lane;

  // Input features [feature, end), at most a piece of them, of which those beyond in_features are
  // zeros. Features beyond the tile's counts keep what was there.
  __device__ __forceinline__ void Fetch(const FewRowsProduct& product, const FewRowsTile& tile,
                                        int feature, int end, int stage) const {
    constexpr int kLanes = kGroups * kFewRowsGroup / 8;  // per row
    const int column = feature + lane % kLanes * 8;
    if (column >= end) return;
    const int first_row = lane / kLanes;
    const int64_t in_features = product.in_features;
    const BFloat16* from = product.weight + (tile.row + first_row) * in_features + column;
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

  // The operands of steps 2 pair and 2 pair + 1 (16 input features each) of a group of the piece.
  __device__ __forceinline__ void Fragments(int stage, int group, int pair,
                                            uint32_t (&a)[2][4]) const {
    const uint32_t at = stages + static_cast<uint32_t>(stage * kStageBytes + lane % 16 * kPitch +
                                                       lane / 16 * 16 + group * kFewRowsGroup * 2);
    LdMatrix4(a[0], at + static_cast<uint32_t>(pair * 64));
    LdMatrix4(a[1], at + static_cast<uint32_t>(pair * 64 + 32));
  }
};

}  // namespace diffserve::cuda
