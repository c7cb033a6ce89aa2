// Rotary position embedding of q and k, and the append of k and v to their pages, the contract of
// both backends. A family without rotation has q and k copied as they are (kNone, of which no angle
// is read), and a layer that attends to an earlier layer's K and V has no k and v to append
// (has_kv).
//
// Half-split (NeoX, Llama): dims (i, i + d/2) form a pair; interleaved (GPT-J, unilm): dims (2i, 2i
// + 1). Pair i of a head at position p is turned by the angle p * inv_freq[i], rounded to float32
// as transformers does (its checkpoints were trained with that rounding, and at long positions
// nothing else differs as much), and scaled by `attention_factor` (1 except for yarn).
//
// A sequence without rows, and an empty batch, are skipped; rows of no sequence are not touched.
// NaNs and infinities pass through in their own pair; what the pages' codec makes of a number,
// kv_codec.h says. *Invariants*: a row's bits do not depend on who shares the batch. Earlier slots
// stay. On a GPU the slots of a fresh page behind the sequence's last row become 0, so that no page
// that the batch began holds the bits of an earlier sequence; on the CPU they stay.
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

// T: of the activations, which says the backend too. All pointers are the backend's memory, on a
// GPU 16-byte aligned; there head_dim and v_dim are multiples of 16.
template <typename T>
struct RopeAppendArgs {
  DiffSpec spec;
  BatchOf<T> batch;  // no position is beyond the angles
  PagedKv kv;
  RopeAngles rope;
  RopeStyle style = RopeStyle::kHalfSplit;
  bool has_kv = true;      // false: qkv is q alone, and no page or its table is touched
  const T* qkv = nullptr;  // [rows, width()], the stacked projection in canonical order
  T* q = nullptr;          // out: [rows, q_width], rotated; on a GPU after the transform of K,
                           // if pages have one, and then rounded

  int width() const { return spec.q_width() + (has_kv ? spec.k_width() + spec.v_width() : 0); }
};

void RopeAppendRef(const RopeAppendArgs<float>& args);

namespace cpu {
// Of a sequence whose rows `row` would be cut at: the next row that no byte of V is shared across,
// as slots of one pack share bytes where a number has less than 8 bits.
int CutRow(const SequenceTokens& sequence, int row, const KvCodec& codec);

void RopeAppend(const RopeAppendArgs<float>& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
Status RopeAppend(const RopeAppendArgs<BFloat16>& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
