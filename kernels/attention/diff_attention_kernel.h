// What the attention kernel of each level is called with. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/attention/kv_format.h"

namespace diffserve {

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
};

// Consecutive tokens of one sequence, all heads of one group.
struct AttentionTask {
  const int32_t* pages;  // of the sequence
  int group;
  int first_row;  // of the first token, in q and out
  int position;   // of the first token
  int num_tokens;
};

// A query is one (token, query head) of either map.
constexpr int64_t AttentionQueriesPerToken(const AttentionCall& call) {
  return (call.num_q1_heads + call.num_q2_heads) / call.kv.format.num_groups;
}

inline constexpr int kAttentionStepSlots = 64;  // slots that share one update of a query's running
                                                // maximum

// Floats of workspace that a task of `num_tokens` tokens needs.
constexpr int64_t AttentionWorkspaceFloats(const AttentionCall& call, int num_tokens) {
  const int64_t per_query = call.kv.format.head_dim + (call.kv.format.v_dim + 15) / 16 * 16 +
                            kAttentionStepSlots + 16 + 2;
  return num_tokens * AttentionQueriesPerToken(call) * per_query + 64;
}

}  // namespace diffserve
