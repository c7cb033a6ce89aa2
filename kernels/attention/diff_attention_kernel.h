// What the attention kernel of each level is called with. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_window.h"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/logit_quant.h"

namespace diffserve {

// Slots that share a maximum, and of whose values each output takes one chain: range r is [r *
// kAttentionRangeSlots, (r + 1) * kAttentionRangeSlots) of a sequence, so a row's arithmetic
// depends on its position alone.
inline constexpr int kAttentionRangeSlots = 256;

// The same for every task of one DiffAttention call. The names are those of DiffSpec and
// DiffAttentionArgs.
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
  const float* lambda_rows;  // nullptr: `lambda` holds for all
  bool has_sub_norm;
  float sub_norm_eps;
  const float* sub_norm_weight;  // nullptr: none
  float out_scale;
  int window;  // of WindowSlots
  LogitQuant logit_quant;

  // A query is one (token, query head) of either map.
  DIFFSERVE_HOST_DEVICE int QueriesPerToken() const {
    return (num_q1_heads + num_q2_heads) / kv.format.num_groups;
  }
  DIFFSERVE_HOST_DEVICE int OutputsPerToken() const { return num_q1_heads / kv.format.num_groups; }
};

// Consecutive tokens of one sequence, all heads of one group. One worker does all of it, or
// several share it: the passes in their order, of each the ranges in any.
struct AttentionTask {
  enum class Pass : uint8_t {
    kAll,           // the four below, for all ranges; sums of ranges are added as they come
    kScores,        // of the slots of some ranges
    kExponentials,  // of scores that are quantised by all of a query's, of some ranges
    kValues,        // weighed, of some ranges; each range's sum is kept
    kFinish,        // the ranges' sums become the output
  };
  const int32_t* pages;  // of the sequence
  int group;
  int first_row;  // of the first token, in q and out
  int position;   // of the first token
  int num_tokens;
  int first_slot;  // that the first token sees, and so the first that any does
  Pass pass;
  int first_range;
  int end_range;
  float* memory;  // AttentionSizes::TaskFloats, 64-byte aligned; of the task, shared by its workers

  DIFFSERVE_HOST_DEVICE int num_slots() const { return position + num_tokens; }
  // Those that its tokens see slots of are least_range() and the num_ranges() - 1 behind it.
  DIFFSERVE_HOST_DEVICE int least_range() const { return first_slot / kAttentionRangeSlots; }
  DIFFSERVE_HOST_DEVICE int num_ranges() const {
    return (num_slots() + kAttentionRangeSlots - 1) / kAttentionRangeSlots - least_range();
  }
};

// How much memory a task takes, in floats. Every part begins on a cache line.
struct AttentionSizes {
  int64_t queries;
  int64_t outputs;  // one a token and signal head
  int64_t ranges;
  int64_t head_dim;
  int64_t out_stride;    // v_dim, rounded up
  int64_t range_stride;  // ranges, rounded up
  int64_t statistics;    // of a query and range: maximum and sum, and what quantising needs

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

  // Scores; statistics of each query and range; sums of values, of all ranges or of each.
  DIFFSERVE_HOST_DEVICE int64_t ScoresFloats() const {
    return ranges * queries * kAttentionRangeSlots;
  }
  DIFFSERVE_HOST_DEVICE int64_t StatisticFloats() const { return queries * range_stride; }
  DIFFSERVE_HOST_DEVICE int64_t SumFloats() const { return outputs * out_stride; }
  DIFFSERVE_HOST_DEVICE int64_t TaskFloats(bool is_shared) const {
    return ScoresFloats() + statistics * StatisticFloats() + (is_shared ? ranges : 1) * SumFloats();
  }

  // Of a worker: q as the kernels want it; weights of a range; by what a range's p become
  // probabilities; the sum of a range; which slots each query sees; with codes the scales and
  // sums of its q, and the scales and zeros of weights.
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
