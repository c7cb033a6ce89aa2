// SPDX-License-Identifier: Apache-2.0
// DiffSpec: what distinguishes one family's attention from another's, once the loader has brought
// the checkpoint's rows into the canonical head order. Plain attention (Llama) is the case without
// a second map.
//
// Canonical order, G = num_kv_groups:
//   q row:  [q1 head 0 .. num_q1_heads-1 | q2 head 0 .. num_q2_heads-1], each of width head_dim
//   k row:  [K1 of group 0 .. G-1 | K2 of group 0 .. G-1 (only if k_maps == 2)], each of width
//   head_dim
//   v row:  [V of group 0 .. G-1], each of width v_dim
//   out row: [head 0 .. num_q1_heads-1], each of width v_dim
// Signal head s reads group g = s / (num_q1_heads / G); its noise head is s / (num_q1_heads /
// num_q2_heads).
#pragma once

namespace diffserve {

enum class LambdaKind {
  kNone,  // plain attention: no second map
  // One scalar per layer: exp(lq1.lk1) - exp(lq2.lk2) + lambda_init (arXiv 2410.05258, eq. 2).
  kPerLayer,
  // sigmoid(lambda_proj(x)): one value per token and output head (Diff Transformer V2).
  kPerTokenHead,
};

enum class SubNorm {
  kNone,
  kPlain,
  kAffine
};  // per-head RMSNorm over v_dim: absent, without weight, with weight [v_dim]

struct DiffSpec {
  int num_q1_heads = 0;   // signal query heads = output heads
  int num_q2_heads = 0;   // noise query heads; 0 for plain attention; divides num_q1_heads
  int num_kv_groups = 0;  // divides num_q1_heads and num_q2_heads
  // 2: K1 and K2 differ (V1-like). 1: both maps read one K (V2), or there is only one map (plain).
  int k_maps = 1;
  int head_dim = 0;  // d: width of a q or k head
  int v_dim = 0;     // width of V: 2d for V1-like families, d for V2 and plain
  LambdaKind lambda_kind = LambdaKind::kNone;
  SubNorm sub_norm = SubNorm::kNone;
  float sub_norm_eps = 1e-5f;

  bool has_second_map() const { return num_q2_heads > 0; }
  int q_width() const { return (num_q1_heads + num_q2_heads) * head_dim; }
  int k_width() const { return num_kv_groups * k_maps * head_dim; }
  int v_width() const { return num_kv_groups * v_dim; }
  int out_width() const { return num_q1_heads * v_dim; }
};

}  // namespace diffserve
