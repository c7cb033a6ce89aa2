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
  float* memory;  // TaskMemory::Floats, 64-byte aligned; the task's, shared by its workers

  DIFFSERVE_HOST_DEVICE int num_slots() const { return position + num_tokens; }
  // Its tokens see slots of the num_ranges() ranges from min_range() on.
  DIFFSERVE_HOST_DEVICE int min_range() const { return first_slot / kAttentionRangeSlots; }
  DIFFSERVE_HOST_DEVICE int num_ranges() const {
    return (num_slots() + kAttentionRangeSlots - 1) / kAttentionRangeSlots - min_range();
  }
};

// Does a task. `following`: what the worker does next, whose first K is prefetched, or nullptr.
// `workspace`: the worker's own WorkerFloats, 64-byte aligned.
using AttentionFunction = void (*)(const AttentionCall& call, const AttentionTask& task,
                                   const AttentionTask* following, float* workspace);

// For pages of each type (kv_codec.h):
struct FloatAttention {
  AttentionFunction float32;
  AttentionFunction float16;

  static const FloatAttention &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const FloatAttention& paired16();
};

struct BFloat16Attention {
  AttentionFunction bfloat16;

  static const BFloat16Attention &plain(), &avx2(), &avx512(), &avx512_bf16(), &neon(),
      &neon_bf16();
  [[gnu::weak]] static const BFloat16Attention& paired16();
};

struct CodeAttention {
  AttentionFunction int8;
  AttentionFunction int8k_int4v;
  AttentionFunction int4;

  static const CodeAttention &plain(), &avx2(), &avx512(), &avx512_vnni(), &neon(), &neon_dot(),
      &neon_bf16();
  [[gnu::weak]] static const CodeAttention& paired16();
};

}  // namespace diffserve
