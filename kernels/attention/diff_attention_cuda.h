// Differential attention over image pages on the GPU. The rules are those of diff_attention.h; q,
// K, V and out are bf16, all between is float32. Decode is for few query rows a sequence (correct
// for any number), prefill for chunks of a prompt. Each is, for a row, one fixed chain of
// operations that follows absolute positions: its bits depend neither on who shares the batch nor
// on how the prompt was cut. The chains of decode and prefill differ, so a row's bits are the same
// again only if the same one computes it. An infinity or a NaN in K or V, which only a model that
// overflows bf16 makes, may reach rows of the same chunk that do not attend to it. Nothing here
// allocates or waits, and a launch depends only on the sizes of a batch, so it can be part of a
// graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/diff_spec.h"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/base/cuda/device.h"

struct CUstream_st;  // CUDA's stream

namespace diffserve::cuda {

inline constexpr int kImagePageSize = kPageSize;

// All pointers are device memory. Rows beyond batch.num_rows are not touched.
struct DiffAttentionArgs {
  DiffSpec spec;
  PagedBatch batch;
  PagedKv kv;                              // already holds K and V of the batch's own rows
  const uint16_t* q = nullptr;             // bf16 [rows, spec.q_width()], rotated; 16-byte aligned
  uint16_t* out = nullptr;                 // bf16 [rows, spec.out_width()]
  float scale = 0;                         // 1 / sqrt(head_dim)
  float lambda = 0;                        // kPerLayer
  const float* lambda_rows = nullptr;      // kPerTokenHead: [rows, num_q1_heads], after the sigmoid
  const float* sub_norm_weight = nullptr;  // kAffine: [v_dim]
  float out_scale = 1;
  AttentionTiling tiling;  // DiffDecodeTiling or DiffPrefillTiling
  AttentionPlan plan;  // made by PlanDiffAttention for this batch and tiling, once a step for all
                       // layers
  float* partials = nullptr;      // decode: [DiffDecodePartialFloats()], one layer's at a time
  bool allow_bulk_copies = true;  // false: cp.async on every device
};

// The pages that the kernels take.
inline KvFormat ImageFormat(const DiffSpec& spec) {
  return KvFormat::Of(spec, kImagePageSize, DType::kBFloat16, KvArrangement::kImage);
}
// nullptr, or why there is no kernel for this spec and these pages.
const char* DiffAttentionUnsupported(const DiffSpec& spec, const KvFormat& format);

// ---- Decode: reads each page's K1, K2 and V once for up to 8 query rows of a group (16 without a
// second map), by splits of 512 slots.

// For batches in which no sequence has more than `rows_per_sequence_max` rows. No row's bits depend
// on the tiling.
AttentionTiling DiffDecodeTiling(const DiffSpec& spec, int rows_per_sequence_max);
size_t DiffDecodePartialFloats(const DiffSpec& spec, const AttentionTiling& tiling,
                               int64_t num_items);
int DiffDecode(const DiffAttentionArgs& args, CUstream_st* stream);

// ---- Prefill: 64 or 128 query rows of a group at a time, without splits; needs no partials.
// Hopper has kernels of its own for head widths of 64 and 128 (with bulk copies); their bits differ
// from those of the portable kernel.

// For the device that is current now, as DiffPrefill must find it. `allow_bulk_copies` as in
// DiffAttentionArgs.
AttentionTiling DiffPrefillTiling(const DiffSpec& spec, bool allow_bulk_copies = true);
int DiffPrefill(const DiffAttentionArgs& args, CUstream_st* stream);

// ---- Both. Launchers return a cudaError_t as int: 0 is success.

// Items of any batch of at most `num_sequences` sequences, of at most `rows_per_sequence_max` rows
// each, whose lengths sum to at most `num_slots`.
int64_t AttentionItemsMax(const AttentionTiling& tiling, int rows_per_sequence_max,
                          int num_sequences, int64_t num_slots);
int PlanDiffAttention(const AttentionTiling& tiling, const PagedBatch& batch,
                      const AttentionPlan& plan, CUstream_st* stream);

}  // namespace diffserve::cuda
