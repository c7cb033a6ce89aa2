// SPDX-License-Identifier: Apache-2.0
// DecodedKeys: K of one layer's pages as float32, for all slots of a sequence. It serves
// diagnostics that read the logits of many queries, and takes as much memory as the layer's K in
// float32.
//
// Thread safety: immutable after construction.
#pragma once

#include <span>
#include <vector>

#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"

namespace diffserve {

class ThreadPool;

class DecodedKeys {
 public:
  // Decodes the slots that the sequence has after the batch. Takes pages of any format.
  DecodedKeys(const PagedKv& kv, const SequenceTokens& sequence, ThreadPool& pool);

  // logits[slot] = scale * q . K[slot] for all slots of `logits`, in float32. `q` is [head_dim].
  // REQUIRES: no more slots than the sequence has.
  void Logits(int group, int k_map, const float* q, float scale, std::span<float> logits) const;

 private:
  int num_slots_;
  int head_dim_;
  int k_maps_;
  std::vector<float> values_;  // [groups][k_maps][head_dim][num_slots]
};

}  // namespace diffserve
