// SPDX-License-Identifier: Apache-2.0
// A batch of sequences over pages of any format for attention tests: random q, K and V, and every
// slot that no token was written to holds NaNs.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/paged_memory.h"

namespace diffserve::testing {

std::string Describe(const DiffSpec& spec);

// As numbers of 4 bits are transformed, each head_dim of them.
void TransformHeads(std::vector<float>& numbers, int head_dim);

struct AttentionBatchOptions {
  KvFormat format;
  DType activations = DType::kFloat32;
  uint32_t seed = 1;
  uint32_t page_seed = 1;
  std::vector<uint32_t> names = {};  // of the sequences; empty: their indices
  int window = 0;
  bool exact_q = false;  // MakeQExact
};

// value_of(0) .. value_of(width - 1).
template <typename ValueOf>
std::vector<float> RowOf(int width, const ValueOf& value_of) {
  std::vector<float> row;
  for (int d = 0; d < width; ++d) row.push_back(static_cast<float>(value_of(d)));
  return row;
}

class AttentionBatch {
 public:
  // A sequence's K and V depend on the seed and its name only, its q and lambda on its positions
  // too: not on who shares the batch, nor on the chunk that a row came in. All are bfloat16 values
  // where activations are.
  AttentionBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                 const AttentionBatchOptions& options);
  void SetKRow(size_t sequence, int group, int slot, int map, std::span<const float> k);
  void SetVRow(size_t sequence, int group, int slot, std::span<const float> v);
  // One number; those that share a scale with it may be rounded anew.
  void SetK(size_t sequence, int group, int slot, int map, int dim, float value);

  // q and K, before a transform, become small whole numbers, whose products and sums are exact in
  // every format, and the scale a power of 2: a logit is then the same number everywhere, and
  // quantised the same. REQUIRES: of a transform, a head_dim that is a power of 4.
  void MakeLogitsExact();

  // q becomes numbers that codes of 8 bits hold exactly, so that kernels that multiply codes of K
  // by such round nothing of it.
  void MakeQExact();

  // Pages that lie wholly before what the sequences' rows see are forgotten.
  void ForgetPagesBehindWindow();

  // q as kernels with bfloat16 activations multiply K by it: int8 codes times their scale, where K
  // is int8. (With float32 ones q is as it is.)
  std::vector<float> RoundedQ() const;

  int num_tokens() const { return memory.num_tokens(); }
  float scale() const { return scale_; }
  DType activations() const { return options_.activations; }

  DiffAttentionArgs<float> Args(std::vector<float>& out);
  std::vector<float> Reference();

  // The queries of map 1 alone, as plain attention over the same pages.
  void DropSecondMap();

  DiffSpec spec;
  PagedMemory memory;
  std::vector<float> q;            // [rows, q_width]
  std::vector<float> lambda_rows;  // [rows, num_q1_heads]
  std::vector<float> weight;       // [v_dim]
  float lambda = 0.35f;
  float out_scale = 0.8f;
  int window = 0;
  LogitQuant logit_quant;

 private:
  std::byte* PageOf(size_t sequence, int group, int slot);
  std::vector<float> Floats(int count, uint32_t seed, float low, float high) const;
  void FillKv(size_t sequence, int length, uint32_t seed);
  void FillRows(const SequenceShape& shape, uint32_t seed);

  AttentionBatchOptions options_;
  float scale_;
};

}  // namespace diffserve::testing
