// What the rope kernel of each level is called with: one token's row. Plain data only: see simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diffserve {

struct RopeRow {
  const float* qkv;  // the token's row of the stacked projection
  float* q;          // out: num_q_heads rotated heads
  const float* cos;  // [head_dim / 2] of the token's position
  const float* sin;
  bool interleaved;
  int num_q_heads;  // of both maps
  int num_groups;
  int k_maps;
  int head_dim;
  int v_dim;
  // The page of group 0; the page of group g follows at g * page_bytes. See PagedKvLayout.
  std::byte* page;
  size_t page_bytes;
  bool is_bf16;
  int page_size;
  int slot;  // within the page
};

}  // namespace diffserve
