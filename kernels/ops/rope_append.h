// Rotary position embedding of q and k, and the append of k and v to their pages.
//
// Half-split (NeoX, Llama): dims (i, i + d/2) form a pair; interleaved (GPT-J, unilm): dims (2i, 2i
// + 1). Pair i of a head at position p is turned by the angle p * inv_freq[i], rounded to float32
// as transformers does (its checkpoints were trained with that rounding, and at long positions
// nothing else differs as much), and scaled by `attention_factor` (1 except for yarn).
#pragma once

#include <span>
#include <vector>

#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/thread_pool.h"

namespace diffserve {

enum class RopeStyle { kHalfSplit, kInterleaved };

// cos and sin of every position up to max_positions.
class RopeTable {
 public:
  RopeTable() = default;
  RopeTable(std::span<const double> inv_freq, int max_positions, double attention_factor);
  int half_dim() const { return half_dim_; }
  int max_positions() const { return max_positions_; }
  const float* Cos(int position) const {
    return cos_.data() + static_cast<size_t>(position) * static_cast<size_t>(half_dim_);
  }
  const float* Sin(int position) const {
    return sin_.data() + static_cast<size_t>(position) * static_cast<size_t>(half_dim_);
  }

 private:
  int half_dim_ = 0;
  int max_positions_ = 0;
  std::vector<float> cos_;  // [max_positions, half_dim]
  std::vector<float> sin_;
};

struct RopeAppendArgs {
  DiffSpec spec;
  std::span<const SequenceRows> sequences;
  PagedKv kv;
  const RopeTable* rope = nullptr;
  RopeStyle style = RopeStyle::kHalfSplit;
  const float* qkv = nullptr;  // [rows, q_width + k_width + v_width], the stacked projection in
                               // canonical order
  float* q = nullptr;          // out: [rows, q_width], rotated
};

void RopeAppendRef(const RopeAppendArgs& args);

namespace cpu {
void RopeAppend(const RopeAppendArgs& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

}  // namespace diffserve
