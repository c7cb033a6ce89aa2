// SPDX-License-Identifier: Apache-2.0
// What a lane reads of quantised weights: 16 input features of one output feature. It widens them
// to bfloat16 for a step of mma.m16n8k16, exactly: the two pairs of features that the step's A
// operand takes from the lane, times 1 / kUnit.
#pragma once

#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/row_access.cuh"
#include "kernels/ops/weight_tiles.h"

namespace diffserve::cuda {

// In the bits of a bfloat16 below 256, a whole number n is n 2^-133. So one fused multiply-add
// computes (code - zero) / 64.
struct Int8Lane {
  using Tile = Int8Tile;
  static constexpr bool kScalesGroups = false;
  static constexpr float kUnit = 64;
  Words4 codes;

  __device__ __forceinline__ void Read(const std::byte* tile, int lane) {
    codes = *reinterpret_cast<const Words4*>(tile + lane * 16);
  }
  // Reads 16 neighbours instead, those of a step: Widen(t) then gives what lane t of four has.
  __device__ __forceinline__ void ReadStep(const std::byte* tile, int row, int step) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      codes.word[t] = *reinterpret_cast<const uint32_t*>(tile + row * kQuantGroup + t * 16 +
                                                         step * 4);
    }
  }
  __device__ __forceinline__ void Widen(int step, uint32_t& low, uint32_t& high) const {
    constexpr uint32_t kUp = 0x7f007f00u, kMinusZero = 0xc000c000u;  // 2^127, -128 / 64
    const uint32_t word = codes.word[step];
    low = FmaBFloat16(word & 0x00ff00ffu, kUp, kMinusZero);
    high = FmaBFloat16(__byte_perm(word, 0, 0x4341), kUp, kMinusZero);
  }
};

struct Int4Lane {
  using Tile = Int4Tile;
  static constexpr bool kScalesGroups = true;
  static constexpr float kUnit = 64;
  uint2 codes;
  uint16_t scale_bits;

  __device__ __forceinline__ void Read(const std::byte* tile, int lane) {
    codes = *reinterpret_cast<const uint2*>(tile + lane * 8);
    scale_bits = *reinterpret_cast<const uint16_t*>(tile + Tile::ScaleAt(lane / 4));
  }
  // As Int8Lane's.
  __device__ __forceinline__ void ReadStep(const std::byte* tile, int row, int step) {
    constexpr uint32_t kStep = 0x00ff00ffu;
    uint32_t words[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      words[t] = *reinterpret_cast<const uint32_t*>(tile + row * (kQuantGroup / 2) + t * 8 +
                                                    step / 2 * 4) >>
                 step % 2 * 8;
    }
    codes.x = (words[0] & kStep) | (words[1] & kStep) << 8;
    codes.y = (words[2] & kStep) | (words[3] & kStep) << 8;
    scale_bits = *reinterpret_cast<const uint16_t*>(tile + Tile::ScaleAt(row));
  }
  __device__ __forceinline__ void Widen(int step, uint32_t& low, uint32_t& high) const {
    constexpr uint32_t kMinusZero = 0xbe00be00u;  // -8 / 64
    const uint32_t codes_of_steps = step < 2 ? codes.x : codes.y;
    const uint32_t bytes = codes_of_steps >> step % 2 * 8;
    low = FmaBFloat16(bytes & 0x000f000fu, 0x7f007f00u, kMinusZero);   // 2^127
    high = FmaBFloat16(bytes & 0x00f000f0u, 0x7d007d00u, kMinusZero);  // 2^123
  }
  __device__ __forceinline__ float Scale() const { return WidenFloat16(scale_bits); }
};

// e4m3 codes of 16 neighbours; a step has four of them. With exponent and mantissa in the place of
// a bfloat16's, the value is 2^-120 times the number, subnormal or not; a NaN would become 480.
struct Fp8Lane {
  static constexpr bool kScalesGroups = false;
  static constexpr float kUnit = 1;
  Words4 codes;

  __device__ __forceinline__ void Widen(int step, uint32_t& low, uint32_t& high) const {
    low = WidenPair(__byte_perm(codes.word[step], 0, 0x1404));
    high = WidenPair(__byte_perm(codes.word[step], 0, 0x3424));
  }
  // Codes in the upper halves of 16 bits each.
  __device__ __forceinline__ static uint32_t WidenPair(uint32_t pair) {
    return FmaBFloat16(AndOr(pair, 0x80008000u, pair >> 4 & 0x07f007f0u), 0x7b807b80u,
                       0x80008000u);  // times 2^120, plus -0
  }
};

}  // namespace diffserve::cuda
