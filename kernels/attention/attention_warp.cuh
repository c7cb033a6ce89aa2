// SPDX-License-Identifier: Apache-2.0
// What decode and prefill share: the tile of query rows that a warp works on. And the softmaxes of
// prefill's 16 mma rows over one strip after another (sm_80); decode's are in
// attention_columns.cuh.
//
// Rows 0-7 of the mma are queries of map 1 and rows 8-15 their noise queries (map 2). So V is read
// once for both maps, and a thread owns both maps of a query. Without a second map all 16 rows are
// queries.
#pragma once

#include "kernels/attention/attention_finish.cuh"
#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/kv_strip.cuh"
#include "kernels/attention/logit_quant.cuh"
#include "kernels/attention/query_operands.cuh"

namespace diffserve::cuda {

inline constexpr int kMmaRows = 16;
inline constexpr int kStripsPerPage = kImagePageSize / kStripSlots;
static_assert(kImagePageSize == kLogitTileSlots, "a page is a tile of quantised logits");

struct AttentionLaunch {
  AttentionFinish finish;
  PagedBatch batch;
  AttentionTiling tiling;
  AttentionPlan plan;
  PagedKv kv;
  const uint16_t* q;
  float* partials;     // [items, groups, rows_per_tile, maps, v_dim + 2]: O, then max and sum
  uint32_t* counters;  // of items; then [items, groups], of the tile whose first item it is
  int num_q2_heads;
  int num_groups;
  int head_dim;
  float scale_log2;       // scale * log2(e)
  int num_stages;         // in the ring in shared memory
  ScoreQuant logits;      // for the kernels that quantise logits
  float* extents;         // decode: [items, groups, rows_per_tile, maps, kSplitPagesMax]
  bool rounds_q = false;  // Hopper's prefill: to int8 codes, as K's
  int first_group = 0;    // likewise: the groups are [first_group, first_group + num_groups)

  __device__ __forceinline__ int num_maps() const { return finish.has_second_map ? 2 : 1; }
  __device__ __forceinline__ float* Partial(int64_t item, int group, int row, int map,
                                            int v_dim) const {
    return partials +
           ((((item * num_groups + group) * tiling.rows_per_tile + row) * num_maps()) + map) *
               (v_dim + 2);
  }
  // The extents of a query's scores, one per page of a split.
  __device__ __forceinline__ float* Extents(int64_t item, int group, int row, int map) const {
    return extents +
           ((((item * num_groups + group) * tiling.rows_per_tile + row) * num_maps()) + map) *
               kSplitPagesMax;
  }
};

// A plan's items, each once per group.
struct PlannedWork {
  const AttentionItem* items;
  uint32_t count;  // of items times groups
  bool keeps_earlier_slots;

  __device__ __forceinline__ static PlannedWork Of(const AttentionLaunch& call) {
    const AttentionPlanHead head = *call.plan.head;
    return {call.plan.items + head.first_item,
            static_cast<uint32_t>(head.num_items) * static_cast<uint32_t>(call.num_groups),
            head.keeps_earlier_slots != 0};
  }
};

// One item as a thread block sees it.
struct QueryTile {
  DeviceSequence sequence;
  int group;
  int first_query;  // of the tile, among the sequence's tokens times the group's signal heads
  int num_queries;
  int num_slots;   // up to the last slot that some query of the tile attends to
  int first_slot;  // of the split, or of its first page that some query attends to
  int end_slot;    // <= first_slot: the tile attends to no slot of the split
};

__device__ __forceinline__ QueryTile QueryTileOf(const AttentionLaunch& call,
                                                 const AttentionItem& item, int group) {
  QueryTile tile;
  tile.sequence = {item.first_row, item.num_tokens, item.position, item.first_page};
  tile.group = group;
  tile.first_query = item.tile * call.tiling.rows_per_tile;
  tile.num_queries = min(call.tiling.rows_per_tile,
                         item.num_tokens * call.tiling.heads_per_group - tile.first_query);
  tile.num_slots = item.num_slots;
  tile.first_slot = item.first_slot;
  tile.end_slot = item.end_slot;
  return tile;
}

// The part of a tile with queries [begin, begin + count).
__device__ __forceinline__ QueryTile PartOf(const AttentionLaunch& call, const QueryTile& tile,
                                            int begin, int count) {
  QueryTile part = tile;
  part.first_query += begin;
  part.num_queries = max(0, min(count, tile.num_queries - begin));
  part.num_slots = tile.sequence.position +
                   (part.first_query + part.num_queries - 1) / call.tiling.heads_per_group + 1;
  part.end_slot = part.num_queries == 0 ? 0 : min(tile.end_slot, part.num_slots);
  return part;
}

// Slots that every query of the tile attends to, [first, end), and the first slot that any query
// attends to.
struct UnmaskedSlots {
  int first;
  int end;
  int first_of_any;

  __device__ __forceinline__ static UnmaskedSlots Of(const AttentionLaunch& call,
                                                     const QueryTile& tile) {
    const int end = tile.sequence.position + tile.first_query / call.tiling.heads_per_group + 1;
    return {tile.num_slots - call.tiling.window, end, end - call.tiling.window};
  }
  __device__ __forceinline__ bool Hold(int slot, int count) const {
    return slot >= first && slot + count <= end;
  }
};

// The query in one row of the mma, or column if products are turned.
struct TileQuery {
  const uint16_t* q;  // nullptr: no query
  int num_slots;      // it attends to the slots of its window before this one
};

// of_map_2: the first row of map 2, if there is one.
__device__ __forceinline__ TileQuery TileQueryOf(const AttentionLaunch& call, const QueryTile& tile,
                                                 int mma_row, int of_map_2) {
  const bool second = call.finish.has_second_map && mma_row >= of_map_2;
  const int in_tile = second ? mma_row - of_map_2 : mma_row;
  if (in_tile >= tile.num_queries) return {nullptr, tile.num_slots};
  const int row = (tile.first_query + in_tile) / call.tiling.heads_per_group;
  const int head = tile.group * call.tiling.heads_per_group +
                   (tile.first_query + in_tile) % call.tiling.heads_per_group;
  const int num_q1_heads = call.finish.num_q1_heads;
  const int q_head = second ? num_q1_heads + head / (num_q1_heads / call.num_q2_heads) : head;
  const int64_t q_row =
      (int64_t{tile.sequence.first_row} + row) * (num_q1_heads + call.num_q2_heads) + q_head;
  return {call.q + q_row * call.head_dim, tile.sequence.position + row + 1};
}

// The queries in a warp's 16 mma rows, and their scores. Lane l holds those of two rows, l / 4 and
// l / 4 + 8.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
struct QueryWarp {
  using KStrip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize, true>;
  using K = typename KStrip::K;
  using Operands = QueryOperands<Codec, kHeadDim>;

  Operands operands;
  int num_slots[2];
  int lane;

  __device__ __forceinline__ void BeginQueries(const AttentionLaunch& call, const QueryTile& tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileQuery query = TileQueryOf(call, tile, lane / 4 + 8 * half, kMmaRows / 2);
      num_slots[half] = query.num_slots;
      operands.Load(half, query.q, lane);
    }
  }

  // Stage 1: scores of the slots. With two K, both multiply all 16 rows, and each row keeps the
  // product with its own map's K. Zeroing the other map's rows in the operands would take twice the
  // registers for q.
  __device__ __forceinline__ void Scores(uint32_t strip, float (&scores)[2][4]) const {
    typename Operands::Sum sums[kKMaps][2][4];
    uint32_t zeros[kKMaps][2] = {};
#pragma unroll
    for (int map = 0; map < kKMaps; ++map) {
      KStrip::LoadKZeros(zeros[map], strip, map, lane);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[map][i / 4][i % 4] = operands.First(i % 4 / 2);
    }
#pragma unroll
    for (int first = 0; first < Operands::kUnits; first += K::kUnits) {
#pragma unroll
      for (int map = 0; map < kKMaps; ++map) {
        uint32_t k[K::kUnits][4];
        KStrip::LoadK(k, strip, map, Operands::kDims * first, zeros[map], lane);
#pragma unroll
        for (int unit = 0; unit < K::kUnits; ++unit) {
          if (first + unit >= Operands::kUnits) break;
          operands.Multiply(sums[map], first + unit, k[unit]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto sum = sums[i % 4 < 2 ? 0 : kKMaps - 1][i / 4][i % 4];
      scores[i / 4][i % 4] = operands.Product(sum, i % 4 / 2);
    }
    if constexpr (KStrip::kHasScales) MultiplyByScales(strip, scores);
  }
  __device__ __forceinline__ void MultiplyByScales(uint32_t strip, float (&scores)[2][4]) const {
#pragma unroll
    for (int map = 0; map < kKMaps; ++map) {
      float scales[4];
      KStrip::LoadScales(scales, strip, map, lane);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (map != (i % 4 < 2 ? 0 : kKMaps - 1)) continue;
        scores[i / 4][i % 4] *= K::Scale(scales[i / 4 * 2 + i % 2]);
      }
    }
  }

  // Whether the query attends to the slot of the i-th score that a lane holds of a strip. The strip
  // begins at `first_slot`.
  __device__ __forceinline__ bool Attends(int i, int first_slot, int window) const {
    const int slot = first_slot + i / 4 * 8 + lane % 4 * 2 + i % 2;
    return slot < num_slots[i % 4 / 2] && slot >= num_slots[i % 4 / 2] - window;
  }
  __device__ __forceinline__ void Mask(float (&scores)[2][4], int first_slot, int window) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!Attends(i, first_slot, window)) scores[i / 4][i % 4] = kMinusInfinity;
    }
  }

  // Widens the extents of the lane's rows by the scores that the lane holds of the strip.
  __device__ __forceinline__ void Widen(float (&extents)[2], uint32_t strip, int first_slot,
                                        const AttentionLaunch& call) const {
    float scores[2][4];
    Scores(strip, scores);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& extent = extents[i % 4 / 2];
      if (Attends(i, first_slot, call.tiling.window))
        extent = call.logits.Widened(extent, scores[i / 4][i % 4]);
    }
  }
};

// Shared-memory addresses of the extents of a warp's 16 rows.
struct RowExtents {
  float* first;
  int stride;
  __device__ __forceinline__ float& Of(int row) const { return first[row * stride]; }
};

// One warp's share of a tile: the softmaxes of 16 rows over its strips.
template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
struct AttentionWarp : QueryWarp<Codec, kHeadDim, kVDim, kKMaps> {
  using Strip = KvStrip<Codec, kHeadDim, kVDim, kKMaps, kImagePageSize>;
  using Queries = QueryWarp<Codec, kHeadDim, kVDim, kKMaps>;
  using Queries::lane;
  using V = typename Strip::V;
  static constexpr int kVSteps = kVDim / 16;
  // Whether neighbouring columns belong to the two products of a unit, not to one.
  static constexpr bool kSplitsPairs = V::OutColumn(0, 0, 1) == 1;

  float o[2 * kVSteps][4];
  float max[2];  // of raw scores
  float sum[2];  // this lane's part

  __device__ __forceinline__ void Begin(const AttentionLaunch& call, const QueryTile& tile) {
    this->BeginQueries(call, tile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[half] = kMinusInfinity;
      sum[half] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 2 * kVSteps; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    }
  }

  // Stage 2: maximum, p = exp(score - maximum). Relative to the maximum so far; sum and output are
  // rescaled if it rose.
  __device__ __forceinline__ void Weights(float (&scores)[2][4], float scale_log2) {
    float rescale[2];
    bool rose = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * half;
      float top = fmaxf(fmaxf(scores[0][i], scores[0][i + 1]),
                        fmaxf(scores[1][i], scores[1][i + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      top = fmaxf(top, max[half]);
      const float finite = FiniteMax(top);
      rescale[half] = Exp2((max[half] - finite) * scale_log2);
      rose = rose || top != max[half];
      max[half] = top;
      const float offset = finite * scale_log2;
      float added = 0.0f;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int j = i; j < i + 2; ++j) {
          scores[tile][j] = Exp2(scores[tile][j] * scale_log2 - offset);
          added += scores[tile][j];
        }
      }
      sum[half] = sum[half] * rescale[half] + added;
    }
    if (!__any_sync(kAllLanes, rose)) return;
#pragma unroll
    for (int i = 0; i < 2 * kVSteps; ++i) {
      o[i][0] *= rescale[0];
      o[i][1] *= rescale[0];
      o[i][2] *= rescale[1];
      o[i][3] *= rescale[1];
    }
  }

  // Stage 3: output += p V. The score fragments, rounded to bf16, are the fragments of the left
  // operand.
  __device__ __forceinline__ void Accumulate(uint32_t strip, const float (&p)[2][4]) {
    constexpr int kSteps = kVSteps / Strip::kVParts;  // per part
#pragma unroll
    for (int part = 0; part < Strip::kVParts; ++part) {
      uint32_t a[4];
      uint32_t zeros[2];
      Weighted(a, zeros, strip, part, p);
#pragma unroll
      for (int step = 0; step < kSteps; step += V::kUnits) {
        uint32_t v[V::kUnits][4];
        Strip::LoadV(v, strip, part, 16 * step, zeros, lane);
#pragma unroll
        for (int unit = 0; unit < V::kUnits; ++unit) {
          if (step + unit >= kSteps) break;
          const int column = part * kSteps + step + unit;  // 16 columns
          MmaBFloat16(o[2 * column], a, v[unit][0], v[unit][1]);
          MmaBFloat16(o[2 * column + 1], a, v[unit][2], v[unit][3]);
        }
      }
    }
  }
  // p times the scale of each slot's part of V, and that part's zeros.
  __device__ __forceinline__ void Weighted(uint32_t (&a)[4], uint32_t (&zeros)[2], uint32_t strip,
                                           int part, const float (&p)[2][4]) const {
    float scales[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if constexpr (Strip::kHasScales) Strip::LoadScales(scales, strip, kKMaps + part, lane);
    zeros[0] = V::Zeros(scales[0], scales[1]);
    zeros[1] = V::Zeros(scales[2], scales[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = i % 2 * 2;
      a[i] = PackBFloat16(p[i / 2][first] * V::Scale(scales[i / 2 * 2]),
                          p[i / 2][first + 1] * V::Scale(scales[i / 2 * 2 + 1]));
    }
  }

  // The first of two neighbouring columns of a row: the lane's i-th pair.
  __device__ __forceinline__ int OutColumn(int i) const {
    return i / 2 * 16 + V::OutColumn(lane % 4, kSplitsPairs ? i % 2 : 0, kSplitsPairs ? 0 : i % 2);
  }
  __device__ __forceinline__ float2 Out(int i, int half) const {
    if constexpr (kSplitsPairs)
      return make_float2(o[i / 2 * 2][2 * half + i % 2], o[i / 2 * 2 + 1][2 * half + i % 2]);
    return make_float2(o[i][2 * half], o[i][2 * half + 1]);
  }

  // Undoes V's transform in the lane's row of a half.
  __device__ __forceinline__ void UndoTransform(int half) {
    constexpr int kBlock = kOutBlock<Codec, kHeadDim>;
    if constexpr (kBlock > 1) {
      static_assert(kSplitsPairs, "columns 4 t to 4 t + 3 of a unit are a lane's");
#pragma unroll
      for (int i = 0; i < 2 * kVSteps; i += 2) {
        HadamardPair(o[i][2 * half], o[i + 1][2 * half]);
        HadamardPair(o[i][2 * half + 1], o[i + 1][2 * half + 1]);
      }
#pragma unroll
      for (int i = 0; i < 2 * kVSteps; ++i) {
        HadamardPair(o[i][2 * half], o[i][2 * half + 1]);
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          HadamardLanes(o[i][j], lane, 1);
          HadamardLanes(o[i][j], lane, 2);
        }
      }
#pragma unroll
      for (int bit = 2; bit < kBlock / 8; bit *= 2) {
#pragma unroll
        for (int i = 0; i < 2 * kVSteps; ++i) {
          if ((i & bit) != 0) continue;
          HadamardPair(o[i][2 * half], o[i + bit][2 * half]);
          HadamardPair(o[i][2 * half + 1], o[i + bit][2 * half + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kVSteps; ++i) {
        o[i][2 * half] *= HadamardFactor(kBlock);
        o[i][2 * half + 1] *= HadamardFactor(kBlock);
      }
    }
  }

  __device__ __forceinline__ void Consume(uint32_t strip, int first_slot, bool masked,
                                          const AttentionLaunch& call) {
    float scores[2][4];
    this->Scores(strip, scores);
    if (masked) this->Mask(scores, first_slot, call.tiling.window);
    Weights(scores, call.scale_log2);
    Accumulate(strip, scores);
  }

  // The same with quantised scores.
  __device__ __forceinline__ void Consume(uint32_t strip, int first_slot, bool masked,
                                          const AttentionLaunch& call, const RowExtents& extents) {
    float scores[2][4];
    this->Scores(strip, scores);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ScoreCodes codes = ScoreCodes::Of(call.logits, extents.Of(lane / 4 + 8 * half));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[i / 2][2 * half + i % 2];
        score = codes.Quantised(score);
      }
    }
    if (masked) this->Mask(scores, first_slot, call.tiling.window);
    Weights(scores, call.scale_log2);
    Accumulate(strip, scores);
  }
};

// Waits for all cp.async groups but the last num_stages - 1. The instruction takes only a constant.
__device__ __forceinline__ void WaitForOldestStage(int num_stages) {
  switch (num_stages) {
    case 1:
      return CpAsyncWait<0>();
    case 2:
      return CpAsyncWait<1>();
    case 3:
      return CpAsyncWait<2>();
    default:
      return CpAsyncWait<3>();
  }
}

}  // namespace diffserve::cuda
