// Differential attention over paged K and V, the contract. For each query row at position p and
// signal head s of group g:
//
//   a1 = softmax(q1 K1^T * scale) V     a2 = softmax(q2 K2^T * scale) V      over the slots 0..p of
//   the sequence
//   o  = a1 - lambda * a2                                                     (arXiv 2410.05258,
//   eq. 1)
//   o  = o / sqrt(mean(o^2) + sub_norm_eps) [* sub_norm_weight] * out_scale   (sub-norm; out_scale
//   = 1 - lambda_init)
//
// Plain attention is a1 alone. lambda may be negative or above 1; it is never clamped. Both maps
// are normalised before they are subtracted. A row with a NaN or an infinity in its q yields NaN in
// its own outputs only.
//
// The specification is DiffAttentionRef (double); the CPU implementation reads each page's K1, K2
// and V once for all query heads of the group. Bitwise the same for a row whoever shares the batch
// and however the prompt was cut into chunks: blocks of keys follow absolute positions, and each
// output element is one fixed chain of operations.
#pragma once

#include <span>

#include "kernels/attention/diff_spec.h"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/thread_pool.h"

namespace diffserve {

struct DiffAttentionArgs {
  DiffSpec spec;
  std::span<const SequenceRows> sequences;
  PagedKv kv;                              // already holds K and V of the batch's own rows
  const float* q = nullptr;                // [rows, spec.q_width()], rotated
  float* out = nullptr;                    // [rows, spec.out_width()]
  float scale = 0;                         // 1 / sqrt(head_dim)
  float lambda = 0;                        // kPerLayer
  const float* lambda_rows = nullptr;      // kPerTokenHead: [rows, num_q1_heads], after the sigmoid
  const float* sub_norm_weight = nullptr;  // kAffine: [v_dim]
  float out_scale = 1;
};

// The oracle: naive, double precision, one thread. Same rules, same pages.
void DiffAttentionRef(const DiffAttentionArgs& args);

namespace cpu {
// Decodes and prompt chunks take one path: a decode is a chunk of one token.
void DiffAttention(const DiffAttentionArgs& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

}  // namespace diffserve
