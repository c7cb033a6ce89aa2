// SPDX-License-Identifier: Apache-2.0
// Arguments of each level's rope kernel: one token's row. Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/attention/kv_format.h"

namespace diffserve {

struct RopeRow {
  const float* qkv;  // the token's row of the stacked projection
  float* q;          // out: num_q_heads rotated heads
  const float* cos;  // [head_dim / 2] of the token's position
  const float* sin;
  bool is_rotated;
  bool is_interleaved;
  bool has_kv;      // false: what follows num_q_heads is ignored
  int num_q_heads;  // of both maps
  PagedKv kv;
  int32_t page_id;
  int slot;  // within the page
};

struct RopeKernels {
  void (*row)(const RopeRow& row);

  static const RopeKernels &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const RopeKernels& paired16();
};

}  // namespace diffserve
