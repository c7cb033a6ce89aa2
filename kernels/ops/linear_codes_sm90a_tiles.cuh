// SPDX-License-Identifier: Apache-2.0
// The tiles of MultiplyCodes on Hopper, their order, and the ring of stages in shared memory
// through which a group of input features at a time comes to the warps that compute.
#pragma once

#include "kernels/base/cuda/launch.cuh"
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/linear_quantized_cuda.h"
#include "kernels/ops/weight_lanes.cuh"

namespace diffserve::cuda {

inline constexpr int kCodesThreads = 384;
inline constexpr int kCodesTokens = 128;           // of a tile
inline constexpr int kCodesFeatures = 256;         // of a whole tile
inline constexpr int kCodesBlock = 64;             // features of one wgmma
inline constexpr int kCodesTokenTilesAtOnce = 16;  // whose thread blocks share the weights
inline constexpr int kCodesPartGroups = 8;         // of a part of in_features at least
inline constexpr int kCodesFetchRegisters = 40;
inline constexpr int kCodesComputeRegisters = 232;
static_assert(kCodesFetchRegisters + 2 * kCodesComputeRegisters == 3 * 168);
inline constexpr uint32_t kCodesXBytes = kCodesTokens * kQuantGroup * sizeof(BFloat16);
// Sums on their way from a warp's registers to y: 32 tokens of 16 features. The pitch, in floats,
// has no bank conflicts.
inline constexpr int kCodesSumTokens = 32;
inline constexpr int kCodesSumPitch = 20;
inline constexpr uint32_t kCodesSumBytes = kCodesSumTokens * kCodesSumPitch * sizeof(float);

// What one thread block computes at a time: tokens [first_token, first_token + kCodesTokens) and
// 2 * blocks * kCodesBlock features from first_feature on, over `groups` groups from first_group
// on.
struct CodesTile {
  int first_token;
  int first_row;  // of y
  int first_feature;
  int blocks;  // of each warpgroup: 2, or 1 of half a tile; 0: no output feature is left
  int first_group;
  int groups;
};

// The tiles in their order: token tiles, some at once, and then features. With several parts of
// in_features all tiles are halves, and the parts of a tile are neighbours. Part p has rows
// [p * num_tokens, (p + 1) * num_tokens) of y.
struct CodesTiles {
  int num_tokens;
  int out_features;
  int groups;
  int token_tiles;
  int feature_tiles;
  int parts;
  int whole;  // tiles that are not halved
  int items;  // whole tiles, halves and parts

  // As many parts as give the multiprocessors work, at most parts_max.
  static CodesTiles Of(const QuantizedProduct& product, int num_sms, int parts_max) {
    CodesTiles tiles;
    tiles.num_tokens = product.num_tokens;
    tiles.out_features = product.weight.out_features;
    tiles.groups = static_cast<int>(NumQuantGroups(product.weight.in_features));
    tiles.token_tiles = (product.num_tokens + kCodesTokens - 1) / kCodesTokens;
    tiles.feature_tiles = (tiles.out_features + kCodesFeatures - 1) / kCodesFeatures;
    const int all = tiles.token_tiles * tiles.feature_tiles;
    tiles.parts = std::min({num_sms / (2 * all), tiles.groups / kCodesPartGroups, parts_max});
    tiles.parts = std::max(tiles.parts, 1);
    const int last = all % num_sms;
    const int halved = tiles.parts > 1 ? all : 2 * last <= num_sms ? last : 0;
    tiles.whole = all - halved;
    tiles.items = (all + halved) * tiles.parts;
    return tiles;
  }
  __device__ __forceinline__ CodesTile At(int item) const {
    const int part = item % parts;
    const int of_parts = item / parts;
    const int half = max(of_parts - whole, 0);
    const int tile = of_parts - (half + 1) / 2;
    const int per_round = kCodesTokenTilesAtOnce * feature_tiles;
    const int first = tile / per_round * kCodesTokenTilesAtOnce;
    const int at_once = min(kCodesTokenTilesAtOnce, token_tiles - first);
    const int in_round = tile % per_round;
    CodesTile result;
    result.first_token = (first + in_round % at_once) * kCodesTokens;
    result.first_row = part * num_tokens + result.first_token;
    result.first_feature = in_round / at_once * kCodesFeatures + half % 2 * (kCodesFeatures / 2);
    const int left = out_features - result.first_feature;
    result.blocks = left <= 0 ? 0 : of_parts < whole && left > kCodesFeatures / 2 ? 2 : 1;
    result.first_group = part * groups / parts;
    result.groups = (part + 1) * groups / parts - result.first_group;
    return result;
  }
};

struct CodesCall {
  QuantizedProduct product;
  CodesTiles tiles;
};

// Shared memory: x, 1024-byte aligned, and codes of each stage; barriers; sums of each warp.
template <typename Lane>
struct CodesRing {
  using Tile = typename Lane::Tile;
  static constexpr int kRowTiles = kCodesFeatures / kTileRows;
  static constexpr uint32_t kCodeBytes = kRowTiles * Tile::kBytes;
  static constexpr int kStages = Lane::kScalesGroups ? 8 : 6;
  static constexpr int kLead = kStages / 2;  // groups that the second warpgroup stays behind
  static constexpr uint32_t kBarriersAt = kStages * (kCodesXBytes + kCodeBytes);
  static constexpr uint32_t kSumsAt = kBarriersAt + kStages * 16;
  static constexpr uint32_t kBytes = kSumsAt + 8 * kCodesSumBytes;

  uint32_t base;  // shared address
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ static void Init(uint32_t base) {
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      BarrierInit(base + kBarriersAt + stage * 16, 8);      // both arrivals of the warps that fetch
      BarrierInit(base + kBarriersAt + stage * 16 + 8, 8);  // every warp that computes
    }
    BarrierInitFence();
  }
  __device__ __forceinline__ uint32_t X() const {
    return base + static_cast<uint32_t>(stage) * kCodesXBytes;
  }
  __device__ __forceinline__ uint32_t CodesAt() const {
    return kStages * kCodesXBytes + static_cast<uint32_t>(stage) * kCodeBytes;
  }
  __device__ __forceinline__ uint32_t Full(int of) const {
    return base + kBarriersAt + static_cast<uint32_t>(of) * 16;
  }
  __device__ __forceinline__ uint32_t Empty(int of) const { return Full(of) + 8; }
  __device__ __forceinline__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// A thread's place among the warps that compute.
struct CodesPlace {
  int warpgroup;
  int warp;  // in the warpgroup
  int lane;

  // The first of 16 features of the warp in a block.
  __device__ __forceinline__ int Feature(int blocks, int block) const {
    return (warpgroup * blocks + block) * kCodesBlock + warp * 16;
  }
};

}  // namespace diffserve::cuda
