// SPDX-License-Identifier: Apache-2.0
// Differential attention over paged K and V, the contract of both backends. For each query row at
// position p and signal head s of group g:
//
//   a1 = softmax(q1 K1^T * scale) V     a2 = softmax(q2 K2^T * scale) V      over the slots 0..p of
//   the sequence, or with a window of w over the last w of them, max(0, p - w + 1)..p
//   o  = a1 - lambda * a2                                                     (arXiv 2410.05258,
//   eq. 1)
//   o  = o / sqrt(mean(o^2) + sub_norm_eps) [* sub_norm_weight] * out_scale   (sub-norm; out_scale
//   = 1 - lambda_init)
//
// Logits, the scaled scores, may be quantised before the softmax (logit_quant.h). Plain attention
// is a1 without a second map. lambda may be negative or above 1; it is never clamped. Both maps are
// normalised before they are subtracted. A sequence without rows, and an empty batch, are skipped;
// rows outside every sequence are not touched. Pages wholly before the window of every row of a
// sequence in the batch are not read. Their entries in the page table are not read either and may
// be -1.
//
// *Invariants*: a row is bitwise independent of the rest of the batch, of how the prompt was cut
// into chunks and of the number of threads. Blocks of keys follow absolute positions, and each
// output element is one fixed chain of operations. (A GPU has two such chains:
// attention_plan_cuda.h.) A NaN or an infinity in a head's q yields NaN only in the outputs made
// from it. A NaN in K or V yields NaN in every output that attends to its slot, and in no other
// sequence. (On a GPU a NaN or an infinity in K or V may also reach rows of the same chunk that do
// not attend to it.)
//
// The specification is DiffAttentionRef (double). The CPU computes in float32. At the level
// avx512_bf16, q and the weights of bfloat16 pages, p1 / sum1 - lambda p2 / sum2, are rounded to
// bfloat16. Over pages of codes, at every level, q is rounded to int8 per head, after the transform
// if K is stored after one. The weights, times the scale of each slot's V, are rounded to 16 bits
// relative to the largest in a range of slots. All sums over these integers are exact.
//
// On a GPU q, p (over pages of codes: times the scale of V) and out are bfloat16; everything
// between is float32. Where K has int8 codes, q is rounded on to int8 per head, and the sums are
// exact. Where K is stored after a transform, q comes after the same one, as RopeAppend writes it.
#pragma once

#include "kernels/attention/diff_spec.h"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/logit_quant.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

namespace diffserve {

enum class CpuIsa;
class ThreadPool;

// T: type of the activations, which implies the backend. All pointers are the backend's memory.
template <typename T>
struct DiffAttentionArgs {
  DiffSpec spec;
  BatchOf<T> batch;
  PagedKv kv;                          // already holds K and V of the batch's own rows
  const T* q = nullptr;                // [rows, spec.q_width()], from RopeAppend; 16-byte aligned
  T* out = nullptr;                    // [rows, spec.out_width()]
  float scale = 0;                     // 1 / sqrt(head_dim)
  float lambda = 0;                    // kPerLayer
  const float* lambda_rows = nullptr;  // kPerTokenHead: [rows, num_q1_heads], after the sigmoid
  const float* sub_norm_weight = nullptr;  // kAffine: [v_dim]
  float out_scale = 1;
  int window = 0;  // slots that a query sees, its own included; 0: all before it
  LogitQuant logit_quant = {};

  // REQUIRES: a second map; host memory.
  float LambdaOf(int row, int head) const {
    return spec.lambda_kind == LambdaKind::kPerTokenHead
               ? lambda_rows[int64_t{row} * spec.num_q1_heads + head]
               : lambda;
  }
};

// The oracle: naive, double precision, one thread. Takes pages of any format.
void DiffAttentionRef(const DiffAttentionArgs<float>& args);

namespace cpu {
// Element types of KV pages on the CPU.
inline constexpr DType kPageTypes[] = {DType::kFloat32, DType::kBFloat16,   DType::kFloat16,
                                       DType::kInt8,    DType::kInt8KInt4V, DType::kInt4};

// Whether DiffAttention reads such pages: heads must be whole packs and, with codes, V must be as
// wide as K or twice as wide.
bool TakesPages(const DiffSpec& spec, const KvCodec& codec);

// Workspace bytes that `num_workers` workers touch, for sequences of at most `num_slots` slots. If
// several workers share a task, up to 256 MiB more.
int64_t AttentionWorkspaceBytes(const DiffSpec& spec, int64_t num_slots, int num_workers);

// Scores and partial sums of a call. Grows to the largest batch seen.
class AttentionWorkspace {
 public:
  float* Floats(int64_t count);

 private:
  Buffer buffer_;
};

// Decodes and prompt chunks take one path: a decode is a chunk of one token. Reads each page's K1,
// K2 and V once for all query heads of the group and several tokens, and multiplies V once for both
// maps.
void DiffAttention(const DiffAttentionArgs<float>& args, AttentionWorkspace& workspace, CpuIsa isa,
                   ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
struct AttentionSchedule;  // attention_plan_cuda.h
// Allocates nothing, does not wait, and depends only on the sizes of the batch, so it can be part
// of a graph.
Status DiffAttention(const DiffAttentionArgs<BFloat16>& args, const AttentionSchedule& schedule,
                     const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
