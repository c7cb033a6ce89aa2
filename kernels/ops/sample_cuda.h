// sample.h on the GPU: one token, or the log-probability of one, from each row of logits. Given the
// same logits, the draws and the log-probabilities have the same bits as the CPU's, since both run
// the text of sample_arithmetic.h: every sum is of integers (weights in fixed point), so no order
// of additions can show.
//
// The host turns a row's SampleArgs into a SampleRow and its LogitAdjustments (PackSampleRow),
// copies all rows to the device with the step's one copy, and afterwards turns each SampledRow that
// came back into a SampleResult (ToSampleResult).
#pragma once

#include <cstdint>

#include "kernels/ops/sample_row.h"

struct CUstream_st;  // CUDA's stream

namespace diffserve::cuda {

// All pointers are device memory.
struct SampleRowsArgs {
  float* logits = nullptr;  // [num_rows, vocab_size]; rows with adjustments are changed
  int vocab_size = 0;
  int num_rows = 0;
  const SampleRow* rows = nullptr;  // [num_rows]; one with kind kNothing is skipped, and its
                                    // SampledRow is not written
  // rows[i] owns [first_adjustment, first_adjustment + num_adjustments); their `logit` is written.
  LogitAdjustment* adjustments = nullptr;
  SampledRow* sampled = nullptr;  // out: [num_rows]
};

// Queues the work; returns a cudaError_t: 0 is success. A launch depends on vocab_size and num_rows
// alone, so it can be part of a graph.
int SampleRows(const SampleRowsArgs& args, CUstream_st* stream);

}  // namespace diffserve::cuda
