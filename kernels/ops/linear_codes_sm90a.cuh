// SPDX-License-Identifier: Apache-2.0
// The kernel of MultiplyCodes for Hopper (sm_90a), by int8 or int4 weights.
//
// A thread block takes tiles of 256 output features and 128 tokens, one after another. wgmma reads
// x from shared memory, with the tokens as its N, and weights from registers. One warpgroup
// fetches, two compute: 128 features each, as two blocks of 64, so that a thread holds 128 sums.
//
// A lane's 16 codes of a row tile (weight_tiles.h) are its share of four steps of wgmma. Half of a
// group's steps are issued at a time; while they run, the next codes become bfloat16.
//
// The last tiles of a product are halved, by features, where the halves fit into one round of the
// thread blocks. A product of so few tiles that most thread blocks would have none is computed in
// parts of in_features, whose sums another kernel adds. The second warpgroup starts some groups
// late and stays behind, so that one computes while the other stores.
//
// Limits by arithmetic, per group of a tile: wgmma takes 1,024 cycles. Shared memory, at 128 bytes
// per cycle, is read for 512 of them by wgmma, filled with x for 128, and filled with and read for
// weights for 256 (int4: 136). From L2 come 32 (24.5) KB. A scheduler issues some 350 (int4: 580)
// instructions.
#pragma once

#include "kernels/base/cuda/wgmma.cuh"
#include "kernels/ops/linear_codes_sm90a_finish.cuh"

namespace diffserve::cuda {

// ---- The warps that fetch.

// A thread's share of x: a chunk of eight features of every 16th token of a tile.
struct CodesX {
  static constexpr int kRounds = kCodesTokens / 16;
  const BFloat16* x;
  int feature;               // of the thread's chunk in a group
  uint32_t offset[kRounds];  // of its chunks, in chunks
  uint32_t to;               // of the first one in a stage

  __device__ __forceinline__ CodesX(const QuantizedProduct& product, const CodesTile& tile) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / 8, chunk = thread % 8;
    x = product.x;
    feature = chunk * 8;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      // Tokens beyond the last are copies of it, and are not stored.
      const int token = min(tile.first_token + 16 * i + row, product.num_tokens - 1);
      offset[i] = static_cast<uint32_t>(token) * static_cast<uint32_t>(product.x_stride / 8) +
                  static_cast<uint32_t>(chunk);
    }
    to = static_cast<uint32_t>(row * 128 + (chunk ^ row % 8) * 16);
  }
  // Zeros beyond in_features.
  __device__ __forceinline__ void Fetch(int group, int in_features, uint32_t stage) const {
    const bool exists = group * kQuantGroup + feature < in_features;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const uint32_t at = stage + to + static_cast<uint32_t>(i * 16 * 128);
      if (exists) {
        const uint64_t from = uint64_t{offset[i]} + static_cast<uint32_t>(group) * 8;
        CpAsync16(at, x + from * 8);
      } else {
        StoreShared4(at, {0, 0, 0, 0});
      }
    }
    CpAsyncCommit();
  }
};

// A quarter of the row tiles, by each warp. Row tiles beyond the last are copies of it.
template <typename Lane>
__device__ __forceinline__ void FetchCodes(const CodesCall& call, const CodesRing<Lane>& ring,
                                           const CodesTile& tile, int group, int warp) {
  using Tile = typename Lane::Tile;
  const QuantizedMatrix& weight = call.product.weight;
  const int count = 4 * tile.blocks, begin = warp * count;
  const int first = tile.first_feature / kTileRows;
  const int last = (weight.out_features + kTileRows - 1) / kTileRows - 1;
  const uint32_t barrier = ring.Full(ring.stage);
  if (!ElectedLane()) return;
  BarrierArriveExpect(barrier, static_cast<uint32_t>(count * Tile::kBytes));
  for (int i = begin; i < begin + count; ++i) {
    const std::byte* from = static_cast<const std::byte*>(weight.codes) +
                            (int64_t{min(first + i, last)} * call.tiles.groups + group) *
                                Tile::kBytes;
    BulkCopy(ring.base + ring.CodesAt() + static_cast<uint32_t>(i * Tile::kBytes), from,
             Tile::kBytes, barrier);
  }
}

// Each stage's x is announced when the next one's is on its way.
template <typename Lane>
__device__ __forceinline__ void FetchTiles(const CodesCall& call, CodesRing<Lane> ring, int warp) {
  const auto announce = [&](int stage) {
    ProxyFence();
    __syncwarp();
    if (ElectedLane()) BarrierArrive(ring.Full(stage));
  };
  int previous = -1;
  for (int item = static_cast<int>(blockIdx.x); item < call.tiles.items;
       item += static_cast<int>(gridDim.x)) {
    const CodesTile tile = call.tiles.At(item);
    if (tile.blocks == 0) continue;
    const CodesX x(call.product, tile);
    for (int i = 0; i < tile.groups; ++i) {
      const int group = tile.first_group + i;
      BarrierWait(ring.Empty(ring.stage), ring.parity ^ 1);
      __syncwarp();  // a lane two phases late would wait forever
      FetchCodes(call, ring, tile, group, warp);
      x.Fetch(group, call.product.weight.in_features, ring.X());
      if (previous >= 0) {
        CpAsyncWait<1>();
        announce(previous);
      }
      previous = ring.stage;
      ring.Advance();
    }
  }
  CpAsyncWait<0>();
  if (previous >= 0) announce(previous);
}

// ---- The warps that compute.

// A lane's codes of a row tile, and how they become bfloat16.
template <typename Lane>
struct CodesOperand {
  Lane codes;

  __device__ __forceinline__ void Read(const std::byte* tile, int lane) { codes.Read(tile, lane); }
  __device__ __forceinline__ void Widen(int step, uint32_t& low, uint32_t& high) const {
    codes.Widen(step, low, high);
  }
};
// The group's scale is the sum of two bfloat16 numbers, of eight bits and of at most three. A code
// times the lower one is exact, so code times scale is rounded once.
template <>
struct CodesOperand<Int4Lane> {
  Int4Lane codes;
  uint32_t upper, lower;  // twice each

  __device__ __forceinline__ void Read(const std::byte* tile, int lane) {
    codes.Read(tile, lane);
    const float scale = Int4Lane::kUnit * codes.Scale();
    upper = PackBFloat16(scale, scale);
    const float rest = scale - BFloat16ToFloat(static_cast<BFloat16>(upper));
    lower = PackBFloat16(rest, rest);
  }
  __device__ __forceinline__ uint32_t Scaled(uint32_t pair) const {
    return FmaBFloat16(pair, upper, FmaBFloat16(pair, lower, 0x80008000u));  // plus -0
  }
  __device__ __forceinline__ void Widen(int step, uint32_t& low, uint32_t& high) const {
    codes.Widen(step, low, high);
    low = Scaled(low);
    high = Scaled(high);
  }
};

// What a warp multiplies of a stage. Half of a group's steps are issued at a time. While they run,
// the A operands of the next ones become bfloat16.
template <typename Lane, int kBlocks>
struct CodesMultiply {
  static constexpr int kSteps = kQuantGroup / 16 / 2;  // of a half
  using Operands = uint32_t[kSteps * kBlocks][4];

  CodesOperand<Lane> rows[kBlocks][2];

  __device__ __forceinline__ void Read(const CodesRing<Lane>& ring, const CodesPlace& place) {
    using Tile = typename Lane::Tile;
    const std::byte* const codes = DynamicShared() + ring.CodesAt();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int tile = place.Feature(kBlocks, block) / kTileRows + i;
        rows[block][i].Read(codes + tile * Tile::kBytes, place.lane);
      }
    }
  }
  template <int kHalf>
  __device__ __forceinline__ void Widen(Operands& a) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        uint32_t(&to)[4] = a[step * kBlocks + block];
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[block][i].Widen(kHalf * kSteps + step, to[i], to[2 + i]);
      }
    }
  }
  template <int kHalf>
  __device__ __forceinline__ static void Issue(float (&sums)[kBlocks][64], Operands& a,
                                               uint32_t x) {
    const uint64_t operand = WgmmaOperand(x, 0, 8 * 128);
    Hold(a);  // or they might be written after the fence
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        Wgmma<false>(sums[block], a[step * kBlocks + block],
                     WgmmaAdvance(operand, static_cast<uint32_t>((kHalf * kSteps + step) * 32)),
                     true);
      }
    }
    WgmmaCommit();
  }
  __device__ __forceinline__ static void Hold(Operands& a) {
#pragma unroll
    for (int i = 0; i < kSteps * kBlocks; ++i) WgmmaHold(a[i]);
  }
};

// Sums of kBlocks times 16 features, of the whole tile's tokens.
template <typename Lane, int kBlocks>
__device__ __forceinline__ void MultiplyTile(CodesRing<Lane>& ring, int groups,
                                             const CodesPlace& place, float (&sums)[kBlocks][64]) {
  using Multiply = CodesMultiply<Lane, kBlocks>;
  Multiply codes;
  typename Multiply::Operands first, second;
#pragma unroll
  for (int i = 0; i < kBlocks * 64; ++i) sums[i / 64][i % 64] = 0;
  BarrierWait(ring.Full(ring.stage), ring.parity);
  codes.Read(ring, place);
  codes.template Widen<0>(first);
  for (int group = 0;; ++group) {
    const uint32_t x = ring.X();
    Multiply::template Issue<0>(sums, first, x);
    codes.template Widen<1>(second);
    WgmmaWait<0>();
    Multiply::Hold(first);
    Multiply::template Issue<1>(sums, second, x);
    const int stage = ring.stage;
    ring.Advance();
    const bool is_last = group + 1 == groups;
    if (!is_last) {
      BarrierWait(ring.Full(ring.stage), ring.parity);
      codes.Read(ring, place);
      codes.template Widen<0>(first);
    }
    WgmmaWait<0>();
    Multiply::Hold(second);
    if (ElectedLane()) BarrierArrive(ring.Empty(stage));
    if (is_last) break;
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) WgmmaHold(sums[block]);
}

// ---- A thread block's tiles.

template <typename Lane, int kBlocks>
__device__ __forceinline__ void ComputeTile(const CodesCall& call, CodesRing<Lane>& ring,
                                            const CodesTile& tile, const CodesPlace& place) {
  float sums[kBlocks][64];
  MultiplyTile<Lane, kBlocks>(ring, tile.groups, place, sums);
  if (call.product.y_dtype == DType::kFloat32) {
    CodesFinish<Lane, float, kBlocks>{call.product, tile, place}.Run(sums);
  } else {
    CodesFinish<Lane, BFloat16, kBlocks>{call.product, tile, place}.Run(sums);
  }
}

template <typename Lane>
__device__ __forceinline__ void ComputeTiles(const CodesCall& call, CodesRing<Lane> ring,
                                             const CodesPlace& place) {
  bool waits = place.warpgroup == 1;
  for (int item = static_cast<int>(blockIdx.x); item < call.tiles.items;
       item += static_cast<int>(gridDim.x)) {
    const CodesTile tile = call.tiles.At(item);
    if (tile.blocks == 0) continue;
    if (waits) BarrierWait(ring.Full(min(CodesRing<Lane>::kLead, tile.groups - 1)), 0);
    waits = false;
    if (tile.blocks == 2) {
      ComputeTile<Lane, 2>(call, ring, tile, place);
    } else {
      ComputeTile<Lane, 1>(call, ring, tile, place);
    }
  }
}

}  // namespace diffserve::cuda
