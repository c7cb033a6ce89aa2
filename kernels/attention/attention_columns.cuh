// SPDX-License-Identifier: Apache-2.0
// The softmaxes of a decode tile over one strip after another (sm_80). The 16 rows of each mma are
// slots of K and columns of V, and its 8 columns are queries. Decode has few queries: so the
// products waste less, and their sums take half the registers that they take in prefill
// (attention_warp.cuh), or less.
//
// kSlots: of a strip or a page, as they lie in shared memory. kTiles products lie side by side.
// With one, columns 0-3 are queries of map 1 and columns 4-7 their noise queries (map 2). With two,
// each map has one. Without a second map all columns are queries. A column's sums do not depend on
// the other columns, nor on kTiles.
#pragma once

#include "kernels/attention/attention_warp.cuh"

namespace diffserve::cuda {

inline constexpr int kMmaColumns = 8;

// A strip in shared memory: where it, or its page, begins, and its first slot there.
struct SharedStrip {
  uint32_t address;
  int first;
};

// The queries, and their scores. Lane l reads the query of column l / 4 of each tile. It holds the
// sums of columns 2 (l % 4) and + 1, as [0] and [1], for slots l / 4 and l / 4 + 8 of a strip.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles, int kSlots>
struct DecodeQueries {
  using KStrip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize, true, kSlots>;
  using K = typename KStrip::K;
  using Operands = QueryOperands<Codec, kHeadDim>;
  using Sum = typename Operands::Sum;
  static constexpr int kColumns = kMmaColumns * kTiles;
  static_assert(kTiles == 1 || kTiles == 2);

  Operands operands;                            // a half for each tile
  typename Operands::Finish finish[kTiles][2];  // of the lane's columns
  int num_slots[kTiles][2];
  int lane;

  __device__ __forceinline__ void BeginQueries(const AttentionLaunch& call, const QueryTile& tile) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const TileQuery query = TileQueryOf(call, tile, lane / 4 + kMmaColumns * i, kColumns / 2);
      operands.Load(i, query.q, lane);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int of_column = (lane % 4 * 2 + j) * 4;
        num_slots[i][j] = __shfl_sync(kAllLanes, query.num_slots, of_column);
        finish[i][j] = operands.FinishOf(i, of_column);
      }
    }
  }

  // Stage 1: scores of the slots. With two K and one tile, both multiply all columns, and each
  // column keeps the product with its own map's K.
  __device__ __forceinline__ void Scores(const SharedStrip& strip,
                                         float (&scores)[kTiles][4]) const {
    Sum sums[kKMaps][kTiles][4];
    uint32_t zeros[kKMaps][2] = {};
#pragma unroll
    for (int map = 0; map < kKMaps; ++map) {
      KStrip::LoadKZeros(zeros[map], strip.address, map, lane, strip.first);
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i)
        sums[map][i / 4][i % 4] = Operands::First(finish[i / 4][i % 2]);
    }
#pragma unroll
    for (int first = 0; first < Operands::kUnits; first += K::kUnits) {
#pragma unroll
      for (int map = 0; map < kKMaps; ++map) {
        uint32_t k[K::kUnits][4];
        KStrip::LoadKRows(k, strip.address, strip.first, map, Operands::kDims * first, zeros[map],
                          lane);
#pragma unroll
        for (int unit = 0; unit < K::kUnits; ++unit) {
          if (first + unit >= Operands::kUnits) break;
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            if (kKMaps == kTiles && i != map) continue;
            operands.MultiplyTurned(sums[map][i], i, first + unit, k[unit]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const Sum sum = kTiles == 2 || kKMaps == 1
                          ? sums[kKMaps == 2 ? i / 4 : 0][i / 4][i % 4]
                          : (IsMap2() ? sums[kKMaps - 1][0][i] : sums[0][0][i]);
      scores[i / 4][i % 4] = Operands::Product(sum, finish[i / 4][i % 2]);
    }
    if constexpr (KStrip::kHasScales) MultiplyByScales(strip, scores);
  }

  // Whether the query of the i-th score of a tile that the lane holds attends to its slot. The
  // strip begins at `first_slot`.
  __device__ __forceinline__ bool Attends(int tile, int i, int first_slot, int window) const {
    const int slot = first_slot + lane / 4 + i / 2 * 8;
    const int end = num_slots[tile][i % 2];
    return slot < end && slot >= end - window;
  }
  __device__ __forceinline__ void Mask(float (&scores)[kTiles][4], int first_slot,
                                       int window) const {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      if (!Attends(i / 4, i % 4, first_slot, window)) scores[i / 4][i % 4] = kMinusInfinity;
    }
  }

  // Widens the extents of the lane's columns by the scores that the lane holds of the strip.
  __device__ __forceinline__ void Widen(float (&extents)[kTiles][2], const SharedStrip& strip,
                                        int first_slot, const AttentionLaunch& call) const {
    float scores[kTiles][4];
    Scores(strip, scores);
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      float& extent = extents[i / 4][i % 2];
      if (Attends(i / 4, i % 4, first_slot, call.tiling.window))
        extent = call.logits.Widened(extent, scores[i / 4][i % 4]);
    }
  }

 private:
  // With one tile: whether the lane's columns are of map 2.
  __device__ __forceinline__ bool IsMap2() const { return lane % 4 >= 2; }

  __device__ __forceinline__ void MultiplyByScales(const SharedStrip& strip,
                                                   float (&scores)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int map = kKMaps == 1 ? 0 : kTiles == 2 ? i : IsMap2() ? 1 : 0;
      float scales[2];
      KStrip::LoadRowScales(scales, strip.address, strip.first, map, lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[i][j] *= K::Scale(scales[j / 2]);
    }
  }
};

// One warp's share of a tile.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps, int kTiles, int kSlots>
struct DecodeWarp : DecodeQueries<Codec, kHeadDim, kVDim, kKMaps, kTiles, kSlots> {
  using Strip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize, false, kSlots>;
  using Queries = DecodeQueries<Codec, kHeadDim, kVDim, kKMaps, kTiles, kSlots>;
  using Queries::lane;
  using V = typename Strip::V;
  static constexpr int kVSteps = kVDim / 16;
  // Whether a step's two products hold neighbouring columns of V.
  static constexpr bool kHasPairs = V::OutColumn(0, 0, 1) == 1;

  float o[kVSteps][kTiles][4];
  float max[kTiles][2];  // of raw scores
  float sum[kTiles][2];  // this lane's part

  __device__ __forceinline__ void Begin(const AttentionLaunch& call, const QueryTile& tile) {
    this->BeginQueries(call, tile);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      max[i / 2][i % 2] = kMinusInfinity;
      sum[i / 2][i % 2] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles * kVSteps; ++i) o[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0.0f;
  }

  // Stage 2: maximum, p = exp(score - maximum). Relative to the maximum so far; sum and output are
  // rescaled if it rose.
  __device__ __forceinline__ void Weights(float (&scores)[kTiles][4], float scale_log2) {
    float rescale[kTiles][2];
    bool rose = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = fmaxf(scores[i][j], scores[i][j + 2]);
#pragma unroll
        for (int bits = 4; bits < 32; bits *= 2)
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, bits));
        top = fmaxf(top, max[i][j]);
        const float finite = FiniteMax(top);
        rescale[i][j] = Exp2((max[i][j] - finite) * scale_log2);
        rose = rose || top != max[i][j];
        max[i][j] = top;
        const float offset = finite * scale_log2;
#pragma unroll
        for (int slot = j; slot < 4; slot += 2)
          scores[i][slot] = Exp2(scores[i][slot] * scale_log2 - offset);
        sum[i][j] = sum[i][j] * rescale[i][j] + (scores[i][j] + scores[i][j + 2]);
      }
    }
    if (!__any_sync(kAllLanes, rose)) return;
#pragma unroll
    for (int step = 0; step < kVSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) o[step][i / 4][i % 4] *= rescale[i / 4][i % 2];
    }
  }

  // Stage 3: output += p V.
  __device__ __forceinline__ void Accumulate(const SharedStrip& strip,
                                             const float (&p)[kTiles][4]) {
    constexpr int kSteps = kVSteps / Strip::kVParts;  // per part
#pragma unroll
    for (int part = 0; part < Strip::kVParts; ++part) {
      uint32_t weights[kTiles][2];
      uint32_t zeros[2];
      Weighted(weights, zeros, strip, part, p);
#pragma unroll
      for (int step = 0; step < kSteps; step += V::kUnits) {
        uint32_t v[V::kUnits][4];
        Strip::LoadVRows(v, strip.address, strip.first, part, 16 * step, zeros, lane);
#pragma unroll
        for (int unit = 0; unit < V::kUnits; ++unit) {
          if (step + unit >= kSteps) break;
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
            MmaBFloat16(o[part * kSteps + step + unit][i], v[unit], weights[i][0], weights[i][1]);
        }
      }
    }
  }
  // p times the scale of each slot's part of V, rounded to bf16, as the right operand; and that
  // part's zeros.
  __device__ __forceinline__ void Weighted(uint32_t (&weights)[kTiles][2], uint32_t (&zeros)[2],
                                           const SharedStrip& strip, int part,
                                           const float (&p)[kTiles][4]) const {
    float scales[2] = {1.0f, 1.0f};
    if constexpr (Strip::kHasScales)
      Strip::LoadRowScales(scales, strip.address, strip.first, kKMaps + part, lane);
    Strip::LoadVZeros(zeros, strip.address, strip.first, kKMaps + part, lane);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int half = i % 2;  // of the strip
      const float scale = V::Scale(scales[half]);
      weights[i / 2][half] = TransposeMatrix(
          PackBFloat16(p[i / 2][2 * half] * scale, p[i / 2][2 * half + 1] * scale));
    }
  }

  // The column of V of o[step][][2 * product] and o[step][][2 * product + 1].
  __device__ __forceinline__ int OutColumn(int step, int product) const {
    return 16 * step + V::OutColumn(lane / 8, lane / 4 % 2, product);
  }

  __device__ __forceinline__ void Consume(const SharedStrip& strip, int first_slot, bool masked,
                                          const AttentionLaunch& call) {
    float scores[kTiles][4];
    this->Scores(strip, scores);
    if (masked) this->Mask(scores, first_slot, call.tiling.window);
    Weights(scores, call.scale_log2);
    Accumulate(strip, scores);
  }

  // The same with quantised scores.
  __device__ __forceinline__ void Consume(const SharedStrip& strip, int first_slot, bool masked,
                                          const AttentionLaunch& call, const RowExtents& extents) {
    float scores[kTiles][4];
    this->Scores(strip, scores);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int column = i / 2 * kMmaColumns + lane % 4 * 2 + i % 2;
      const ScoreCodes codes = ScoreCodes::Of(call.logits, extents.Of(column));
#pragma unroll
      for (int j = i % 2; j < 4; j += 2) scores[i / 2][j] = codes.Quantised(scores[i / 2][j]);
    }
    if (masked) this->Mask(scores, first_slot, call.tiling.window);
    Weights(scores, call.scale_log2);
    Accumulate(strip, scores);
  }
};

}  // namespace diffserve::cuda
