// rope_append.h on the GPU: turns q and k of the batch's rows, and writes k and v into their image
// pages. All in bf16, the arithmetic in float32. Slots of a fresh page behind the batch's last row
// become 0, so that no page that the batch began holds the bits of an earlier sequence.
#pragma once

#include <cstdint>

#include "kernels/attention/diff_spec.h"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/ops/rope_append.h"

struct CUstream_st;  // CUDA's stream

namespace diffserve::cuda {

// All pointers are device memory, 16-byte aligned; head_dim and v_dim are multiples of 16.
struct RopeAppendArgs {
  DiffSpec spec;
  PagedBatch batch;  // no position is beyond the rope table
  PagedKv kv;
  const float* cos = nullptr;  // [positions, head_dim / 2], RopeTable's
  const float* sin = nullptr;
  RopeStyle style = RopeStyle::kHalfSplit;
  const uint16_t* qkv = nullptr;  // bf16 [rows, q_width + k_width + v_width], the stacked
                                  // projection in canonical order
  uint16_t* q = nullptr;          // out: bf16 [rows, q_width], rotated
};

// Returns a cudaError_t: 0 is success.
int RopeAppend(const RopeAppendArgs& args, CUstream_st* stream);

}  // namespace diffserve::cuda
