// SPDX-License-Identifier: Apache-2.0
// The end of a tile of MultiplyCodes on Hopper: sums become y, through shared memory, where a warp
// turns 16 features of each token into neighbours. What y held before, if the product is added to
// it, is asked for a part of the tile ahead.
#pragma once

#include "kernels/ops/linear_codes_sm90a_tiles.cuh"

namespace diffserve::cuda {

// Four neighbouring features of a token in y.
template <typename Y>
struct CodesQuad;
template <>
struct CodesQuad<float> {
  Words4 words;
  __device__ __forceinline__ float Number(int i) const {
    return __builtin_bit_cast(float, words.word[i]);
  }
  __device__ __forceinline__ static CodesQuad Of(const float (&from)[4]) {
    CodesQuad quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) quad.words.word[i] = __builtin_bit_cast(uint32_t, from[i]);
    return quad;
  }
};
template <>
struct CodesQuad<BFloat16> {
  uint2 words;
  __device__ __forceinline__ float Number(int i) const {
    return BFloat16ToFloat(static_cast<BFloat16>((i < 2 ? words.x : words.y) >> i % 2 * 16));
  }
  __device__ __forceinline__ static CodesQuad Of(const float (&from)[4]) {
    return {uint2{PackBFloat16(from[0], from[1]), PackBFloat16(from[2], from[3])}};
  }
};
__device__ __forceinline__ float ReadNumber(const float* from) { return *from; }
__device__ __forceinline__ float ReadNumber(const BFloat16* from) { return BFloat16ToFloat(*from); }
__device__ __forceinline__ void WriteNumber(float value, float* to) { *to = value; }
__device__ __forceinline__ void WriteNumber(float value, BFloat16* to) {
  *to = FloatToBFloat16(value);
}

// A warp's way from sums to y, kCodesSumTokens tokens and 16 features at a time. A lane has four
// neighbouring features of every eighth token.
template <typename Lane, typename Y, int kBlocks>
struct CodesFinish {
  static constexpr int kParts = kCodesTokens / kCodesSumTokens * kBlocks;
  static constexpr int kRounds = kCodesSumTokens / 8;
  static constexpr int kAhead = 1;  // parts whose y is on its way
  using Quads = CodesQuad<Y>[kRounds];

  const QuantizedProduct& product;
  const CodesTile& tile;
  const CodesPlace& place;

  // Where a lane's numbers of a part lie: computed again each time, which costs less than
  // registers.
  struct At {
    int row;         // of the part's tokens, in the first round
    int feature;     // the first of four
    int num_rounds;  // whose tokens exist; 0 or less: none
    Y* y;
  };
  __device__ __forceinline__ At Find(int part) const {
    const int lane = ThreadAgain() % 32;
    // Eight lanes at a time read different banks.
    const int row = lane / 8 + lane / 4 % 2 * 4;
    const int token = tile.first_token + part % (kParts / kBlocks) * kCodesSumTokens + row;
    const int feature = FirstFeature(part) + lane % 4 * 4;
    const int out_features = product.weight.out_features;
    const int left = feature < out_features ? product.num_tokens - token : 0;
    return {row, feature, (left + 7) / 8,
            static_cast<Y*>(product.y) +
                static_cast<int64_t>(tile.first_row + token - tile.first_token) * out_features +
                feature};
  }
  __device__ __forceinline__ int FirstFeature(int part) const {
    return tile.first_feature + place.Feature(kBlocks, part / (kParts / kBlocks));
  }
  // Whether every row of y begins where four numbers at a time may.
  __device__ __forceinline__ bool HasQuads() const { return product.weight.out_features % 4 == 0; }

  __device__ __forceinline__ void Load(int part, Quads& quads) const {
    const At at = Find(part);
    const int num_rounds = product.accumulate && HasQuads() ? at.num_rounds : 0;
    const int64_t stride = int64_t{8} * product.weight.out_features;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      quads[round] = {};  // or its registers would be in use from the last tile on
      if (round < num_rounds)
        quads[round] = *reinterpret_cast<const CodesQuad<Y>*>(at.y + round * stride);
    }
  }
  __device__ __forceinline__ void Store(int part, const float* sums, const Quads& quads) const {
    const At at = Find(part);
    sums += at.row * kCodesSumPitch + at.feature % 16;
    if (!HasQuads()) return StoreNumbers(at, sums);
    const int64_t stride = int64_t{8} * product.weight.out_features;
    const auto* const bias = static_cast<const Y*>(product.bias);
    CodesQuad<Y> more = {};
    if (bias != nullptr && at.num_rounds > 0)
      more = *reinterpret_cast<const CodesQuad<Y>*>(bias + at.feature);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (round >= at.num_rounds) break;
      const auto from = *reinterpret_cast<const CodesQuad<float>*>(sums +
                                                                   8 * round * kCodesSumPitch);
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] = from.Number(i);
        if (bias != nullptr) values[i] += more.Number(i);
        if (product.accumulate) values[i] += quads[round].Number(i);
      }
      *reinterpret_cast<CodesQuad<Y>*>(at.y + round * stride) = CodesQuad<Y>::Of(values);
    }
  }
  __device__ __forceinline__ void StoreNumbers(const At& at, const float* sums) const {
    const int out_features = product.weight.out_features;
    const auto* const bias = static_cast<const Y*>(product.bias);
#pragma unroll 1
    for (int i = 0; i < kRounds * 4; ++i) {
      const int round = i / 4, feature = at.feature + i % 4;
      if (round >= at.num_rounds || feature >= out_features) continue;
      float value = sums[8 * round * kCodesSumPitch + i % 4];
      if (bias != nullptr) value += ReadNumber(bias + feature);
      Y* const y = at.y + int64_t{8} * round * out_features + i % 4;
      if (product.accumulate) value += ReadNumber(y);
      WriteNumber(value, y);
    }
  }

  __device__ __forceinline__ void Run(const float (&sums)[kBlocks][64]) const {
    const int row = place.lane / 4, column = place.lane % 4 * 2;
    float* const memory = reinterpret_cast<float*>(DynamicShared() + CodesRing<Lane>::kSumsAt) +
                          (place.warpgroup * 4 + place.warp) * (kCodesSumTokens * kCodesSumPitch);
    Quads quads[kAhead + 1];
#pragma unroll
    for (int part = 0; part < kAhead; ++part) Load(part, quads[part]);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part + kAhead < kParts) Load(part + kAhead, quads[(part + kAhead) % (kAhead + 1)]);
      const int block = part / (kParts / kBlocks), first = part % (kParts / kBlocks) * 16;
      float scale[2] = {1, 1};
      if constexpr (!Lane::kScalesGroups) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int feature = min(FirstFeature(part) + row + 8 * i,
                                  product.weight.out_features - 1);
          scale[i] = Lane::kUnit * product.weight.scale[feature];
        }
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int token = i / 4 * 8 + column + i % 2, half = i / 2 % 2;
        float sum = sums[block][first + i];
        if constexpr (!Lane::kScalesGroups) sum = MulRounded(sum, scale[half]);
        memory[token * kCodesSumPitch + row + 8 * half] = sum;
      }
      __syncwarp();
      Store(part, memory, quads[part % (kAhead + 1)]);
      __syncwarp();
    }
  }
};

}  // namespace diffserve::cuda
