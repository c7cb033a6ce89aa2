// SPDX-License-Identifier: Apache-2.0
// The memory of an attention task and of a worker, as typed parts of buffers of floats. The code
// that cuts a buffer also computes its size. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/attention/diff_attention_kernel.h"

namespace diffserve {

struct AttentionSizes {
  int64_t queries;
  int64_t outputs;  // one per token and signal head
  int64_t ranges;
  int64_t head_dim;
  int64_t out_stride;    // v_dim, rounded up
  int64_t range_stride;  // ranges, rounded up
  bool quantises_rows;   // a query's logits, once all are known

  DIFFSERVE_HOST_DEVICE static AttentionSizes Of(const AttentionCall& call,
                                                 const AttentionTask& task) {
    const int64_t tokens = task.num_tokens;
    return {.queries = tokens * call.QueriesPerToken(),
            .outputs = tokens * call.OutputsPerToken(),
            .ranges = task.num_ranges(),
            .head_dim = call.kv.format.head_dim,
            .out_stride = RoundUp(call.kv.format.v_dim),
            .range_stride = RoundUp(task.num_ranges()),
            .quantises_rows = call.logit_quant.needs_row()};
  }
  DIFFSERVE_HOST_DEVICE int64_t SumFloats() const { return outputs * out_stride; }
  // Up to whole cache lines.
  DIFFSERVE_HOST_DEVICE static int64_t RoundUp(int64_t floats) { return (floats + 15) / 16 * 16; }
};

// Cuts a buffer into parts, in order; each begins on a cache line. Without a buffer it only counts.
class MemoryCutter {
 public:
  DIFFSERVE_HOST_DEVICE explicit MemoryCutter(float* buffer) : buffer_(buffer) {}

  template <typename T>
  DIFFSERVE_HOST_DEVICE T* Take(int64_t count) {
    static_assert(sizeof(T) % sizeof(float) == 0);
    float* const part = buffer_ == nullptr ? nullptr : buffer_ + floats_;
    floats_ += AttentionSizes::RoundUp(count * static_cast<int64_t>(sizeof(T) / sizeof(float)));
    return reinterpret_cast<T*>(part);
  }
  DIFFSERVE_HOST_DEVICE int64_t floats() const { return floats_; }

 private:
  float* const buffer_;
  int64_t floats_ = 0;
};

struct TaskMemory {
  float* scores;      // [ranges][queries][kAttentionRangeSlots], and then p
  float* max;         // [queries][range_stride]
  float* sum;         // [queries][range_stride], of p
  float* extent;      // [queries][range_stride], if logits are quantised by rows
  float* range_sums;  // [1, or ranges if workers share the task][outputs][out_stride]

  DIFFSERVE_HOST_DEVICE static TaskMemory Of(const AttentionSizes& sizes, bool is_shared,
                                             MemoryCutter& cutter) {
    const int64_t statistics = sizes.queries * sizes.range_stride;
    return {.scores = cutter.Take<float>(sizes.ranges * sizes.queries * kAttentionRangeSlots),
            .max = cutter.Take<float>(statistics),
            .sum = cutter.Take<float>(statistics),
            .extent = cutter.Take<float>(sizes.quantises_rows ? statistics : 0),
            .range_sums = cutter.Take<float>((is_shared ? sizes.ranges : 1) * sizes.SumFloats())};
  }
  DIFFSERVE_HOST_DEVICE static int64_t Floats(const AttentionSizes& sizes, bool is_shared) {
    MemoryCutter cutter(nullptr);
    Of(sizes, is_shared, cutter);
    return cutter.floats();
  }
};

// Turns integer sums over the weights of a range into floats.
struct CodeWeights {
  float scale;    // NaN if a weight or a scale of V is not finite
  int32_t zeros;  // for V in four bits: the sum of the weights' codes times the zeros of their
                  // slots
};

// `Operand`: q or a weight as the kernels read it, at most one per number.
template <typename Operand>
struct WorkerMemory {
  Operand* q;        // tiles of [head_dim][queries of the tile]
  Operand* weights;  // [outputs][kAttentionRangeSlots], of a range
  float* factor;     // [queries][range_stride]: turns a range's p into probabilities
  float* sums;       // [outputs][out_stride], of a range
  int* first_seen;   // [queries], the first slot that each sees
  int* end_seen;     // [queries]
  // With codes:
  float* q_scales;            // [queries]
  int32_t* q_sums;            // [queries], sums of the codes
  CodeWeights* code_weights;  // [outputs][2], of a range

  DIFFSERVE_HOST_DEVICE static WorkerMemory Of(const AttentionSizes& sizes, MemoryCutter& cutter) {
    static_assert(sizeof(Operand) == sizeof(float), "the size does not depend on the codec");
    return {.q = cutter.Take<Operand>(sizes.queries * sizes.head_dim),
            .weights = cutter.Take<Operand>(sizes.outputs * kAttentionRangeSlots),
            .factor = cutter.Take<float>(sizes.queries * sizes.range_stride),
            .sums = cutter.Take<float>(sizes.SumFloats()),
            .first_seen = cutter.Take<int>(sizes.queries),
            .end_seen = cutter.Take<int>(sizes.queries),
            .q_scales = cutter.Take<float>(sizes.queries),
            .q_sums = cutter.Take<int32_t>(sizes.queries),
            .code_weights = cutter.Take<CodeWeights>(2 * sizes.outputs)};
  }
};

DIFFSERVE_HOST_DEVICE int64_t WorkerFloats(const AttentionSizes& sizes) {
  MemoryCutter cutter(nullptr);
  WorkerMemory<float>::Of(sizes, cutter);
  return cutter.floats();
}

}  // namespace diffserve
