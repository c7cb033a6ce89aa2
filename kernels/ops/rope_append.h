// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of q and k, and the append of k and v to their pages: the contract of
// both backends. For a family without rotation q and k are copied unchanged (kNone; no angle is
// read). A layer that attends to an earlier layer's K and V has no k and v to append (has_kv).
//
// Half-split (NeoX, Llama): dims (i, i + d/2) form a pair; interleaved (GPT-J, unilm): dims (2i, 2i
// + 1). Pair i of a head at position p is rotated by the angle p * inv_freq[i] and scaled by
// `attention_factor` (1 except for yarn). The angle is rounded to float32 as in transformers: its
// checkpoints were trained with that rounding, and at long positions no other difference is as
// large.
//
// A sequence without rows, and an empty batch, are skipped; rows outside every sequence are not
// touched. NaNs and infinities stay within their own pair; kv_codec.h says how a page's codec
// stores them. *Invariants*: a row's bits do not depend on the rest of the batch. Earlier slots
// stay unchanged. On a GPU the slots of a fresh page after the sequence's last row become 0, so no
// page that the batch began holds bits of an earlier sequence. On the CPU they stay.
#pragma once

#include <span>
#include <vector>

#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/base/status.h"

namespace diffserve {

enum class CpuIsa;
class ThreadPool;

enum class RopeStyle { kHalfSplit, kInterleaved, kNone };

// In the memory of the backend that reads them.
struct RopeAngles {
  const float* cos = nullptr;  // [num_positions, half_dim]
  const float* sin = nullptr;
  int half_dim = 0;
  int num_positions = 0;
};

// cos and sin of every position up to max_positions.
class RopeTable {
 public:
  RopeTable() = default;
  RopeTable(std::span<const double> inv_freq, int max_positions, double attention_factor);
  RopeAngles angles() const { return {cos_.data(), sin_.data(), half_dim_, max_positions_}; }

 private:
  int half_dim_ = 0;
  int max_positions_ = 0;
  std::vector<float> cos_;  // [max_positions, half_dim]
  std::vector<float> sin_;
};

// T: type of the activations, which implies the backend. All pointers are the backend's memory. On
// a GPU they are 16-byte aligned, and head_dim and v_dim are multiples of 16.
template <typename T>
struct RopeAppendArgs {
  DiffSpec spec;
  BatchOf<T> batch;  // no position is beyond the angles
  PagedKv kv;
  RopeAngles rope;
  RopeStyle style = RopeStyle::kHalfSplit;
  bool has_kv = true;      // false: qkv is only q, and no page or page table is touched
  int first_row = 0;       // on a GPU: rows before it are left alone
  const T* qkv = nullptr;  // [rows, width()], the stacked projection in canonical order
  // Out: [rows, q_width], rotated. On a GPU K's transform is applied too, if pages have one, and
  // then the result is rounded.
  T* q = nullptr;

  int width() const { return spec.q_width() + (has_kv ? spec.k_width() + spec.v_width() : 0); }
};

void RopeAppendRef(const RopeAppendArgs<float>& args);

namespace cpu {
// Moves a cut at `row` of a sequence to the next row across which no byte of V is shared. Slots of
// one pack share bytes if a number has fewer than 8 bits.
int CutRow(const SequenceTokens& sequence, int row, const KvCodec& codec);

void RopeAppend(const RopeAppendArgs<float>& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
Status RopeAppend(const RopeAppendArgs<BFloat16>& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
