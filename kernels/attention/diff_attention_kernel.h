// SPDX-License-Identifier: Apache-2.0
// Arguments of each level's attention kernel. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_window.h"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/logit_quant.h"

namespace diffserve {

// Slots per range. The slots of a range share a maximum, and each output sums their values in one
// chain. Range r is slots [r * kAttentionRangeSlots, (r + 1) * kAttentionRangeSlots) of a sequence,
// so a row's arithmetic depends only on its position.
inline constexpr int kAttentionRangeSlots = 256;

// Constants of one DiffAttention call, the same for all its tasks. The names are those of DiffSpec
// and DiffAttentionArgs.
struct AttentionCall {
  int num_q1_heads;
  int num_q2_heads;
  PagedKv kv;

  const float* q;
  float* out;
  int64_t q_width;
  int64_t out_width;
  float scale;
  float lambda;
  const float* lambda_rows;  // nullptr: `lambda` holds for all rows
  bool has_sub_norm;
  float sub_norm_eps;
  const float* sub_norm_weight;  // nullptr: no weight
  float out_scale;
  int window;  // as WindowSlots gives it
  LogitQuant logit_quant;

  // A query is one (token, query head) of either map.
  DIFFSERVE_HOST_DEVICE int QueriesPerToken() const {
    return (num_q1_heads + num_q2_heads) / kv.format.num_groups;
  }
  DIFFSERVE_HOST_DEVICE int OutputsPerToken() const { return num_q1_heads / kv.format.num_groups; }
};

// Consecutive tokens of one sequence, all heads of one group. One worker does it all, or several
// share it: passes run in order, the ranges of a pass in any order.
struct AttentionTask {
  enum class Pass : uint8_t {
    kAll,           // the four below, for all ranges; sums of ranges are added as they come
    kScores,        // for the slots of some ranges
    kExponentials,  // for some ranges, if quantising needs all scores of a query
    kValues,        // weighted, for some ranges; each range's sum is kept
    kFinish,        // the ranges' sums become the output
  };
  const int32_t* pages;  // of the sequence
  int group;
  int first_row;  // row of the first token in q and out
  int position;   // position of the first token
  int num_tokens;
  int first_slot;  // the first slot that any of the tokens sees
  Pass pass;
  int first_range;
  int end_range;
  float* memory;  // AttentionSizes::TaskFloats, 64-byte aligned; the task's, shared by its workers

  DIFFSERVE_HOST_DEVICE int num_slots() const { return position + num_tokens; }
  // Its tokens see slots of the num_ranges() ranges from min_range() on.
  DIFFSERVE_HOST_DEVICE int min_range() const { return first_slot / kAttentionRangeSlots; }
  DIFFSERVE_HOST_DEVICE int num_ranges() const {
    return (num_slots() + kAttentionRangeSlots - 1) / kAttentionRangeSlots - min_range();
  }
};

struct AttentionKernels {
  // `workspace`: the calling worker's own AttentionSizes::WorkspaceFloats, 64-byte aligned.
  void (*run)(const AttentionCall& call, const AttentionTask& task, float* workspace);

  static const AttentionKernels &avx2(), &avx512(), &avx512_vnni(), &avx512_bf16();
  [[gnu::weak]] static const AttentionKernels& paired16();
};

// How much memory a task takes, in floats. Every part begins on a cache line.
struct AttentionSizes {
  int64_t queries;
  int64_t outputs;  // one per token and signal head
  int64_t ranges;
  int64_t head_dim;
  int64_t out_stride;    // v_dim, rounded up
  int64_t range_stride;  // ranges, rounded up
  int64_t statistics;    // per query and range: maximum and sum, and a third if quantising needs it

  DIFFSERVE_HOST_DEVICE static AttentionSizes Of(const AttentionCall& call,
                                                 const AttentionTask& task) {
    const int64_t tokens = task.num_tokens;
    return {.queries = tokens * call.QueriesPerToken(),
            .outputs = tokens * call.OutputsPerToken(),
            .ranges = task.num_ranges(),
            .head_dim = call.kv.format.head_dim,
            .out_stride = RoundUp(call.kv.format.v_dim),
            .range_stride = RoundUp(task.num_ranges()),
            .statistics = call.logit_quant.needs_row() ? 3 : 2};
  }

  // Scores; statistics per query and range; sums of values, one for all ranges or one per range.
  DIFFSERVE_HOST_DEVICE int64_t ScoresFloats() const {
    return ranges * queries * kAttentionRangeSlots;
  }
  DIFFSERVE_HOST_DEVICE int64_t StatisticFloats() const { return queries * range_stride; }
  DIFFSERVE_HOST_DEVICE int64_t SumFloats() const { return outputs * out_stride; }
  DIFFSERVE_HOST_DEVICE int64_t TaskFloats(bool is_shared) const {
    return ScoresFloats() + statistics * StatisticFloats() + (is_shared ? ranges : 1) * SumFloats();
  }

  // Per worker: q as the kernels read it; weights of a range; factors that turn a range's p into
  // probabilities; the sum of a range; the slots that each query sees. With codes also the scales
  // and sums of q, and the scales and zeros of the weights.
  DIFFSERVE_HOST_DEVICE int64_t QFloats() const { return RoundUp(queries * head_dim); }
  DIFFSERVE_HOST_DEVICE int64_t WeightFloats() const { return outputs * kAttentionRangeSlots; }
  DIFFSERVE_HOST_DEVICE int64_t QueryFloats() const { return RoundUp(queries); }
  DIFFSERVE_HOST_DEVICE int64_t WorkspaceFloats() const {
    return QFloats() + WeightFloats() + StatisticFloats() + SumFloats() + 4 * QueryFloats() +
           RoundUp(4 * outputs);
  }

 private:
  DIFFSERVE_HOST_DEVICE static int64_t RoundUp(int64_t floats) { return (floats + 15) / 16 * 16; }
};

}  // namespace diffserve
