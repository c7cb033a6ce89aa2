// SPDX-License-Identifier: Apache-2.0
// The selective scan of a Mamba-1 layer (arXiv 2312.00752, algorithm 2), the contract of both
// backends. For each channel, over its tokens t in order:
//
//   delta = softplus(dt[t] + dt_bias)                       softplus(v) = log(1 + exp(v))
//   s[n]  = exp(delta * rates[n]) * s[n] + delta * x[t] * b[t][n]        for all n < states
//   y     = sum over n of s[n] * c[t][n] + skip * x[t]
//   out   = y * silu(z[t]) with a gate, else y              silu(z) = z / (1 + exp(-z))
//
// s is the sequence's state, [states, channels] float32; a new sequence has zeros. Activations are
// float32 on the CPU. On a device they are bfloat16, and y is rounded once, after the gate if there
// is one.
//
// *Invariants*: the tokens of a sequence are computed one after another, each by the same chain of
// float32 operations. So neither chunks, nor the batch, nor the number of threads change a bit of
// `out` or of the state. On the CPU every level gives the same bits. Rows outside every sequence,
// and slots that are `to` of none, are not written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/mamba/state_batch.h"

namespace diffserve {

enum class CpuIsa;
class Status;
class ThreadPool;

inline constexpr int kScanStatesMax = 128;

// T: type of the activations, which implies the backend.
template <typename T>
struct SelectiveScanArgs {
  StateBatch batch;
  const T* x = nullptr;            // [rows, channels]
  const T* dt = nullptr;           // [rows, channels]
  const float* dt_bias = nullptr;  // [channels]
  const T* b = nullptr;            // [rows, states]; rows are bc_stride elements apart
  const T* c = nullptr;            // likewise
  int64_t bc_stride = 0;           // at least `states`: both may be parts of wider rows
  const float* rates = nullptr;    // [states, channels], none above 0; from ScanRates
  const float* skip = nullptr;     // [channels]
  const T* z = nullptr;  // [rows, channels]; rows are z_stride elements apart; nullptr: no gate
  int64_t z_stride = 0;
  T* out = nullptr;  // [rows, channels]; shares no memory with the inputs
  StateSlots state;  // [states, channels] per slot
  int channels = 0;
  int states = 0;  // 1 to kScanStatesMax

  int64_t StateFloats() const { return int64_t{states} * channels; }
};

// Makes -exp(a_log), [states, channels], from a checkpoint's [channels, states].
std::vector<float> ScanRates(std::span<const float> a_log, int channels, int states);

void SelectiveScanRef(const SelectiveScanArgs<float>& args);

namespace cpu {
void SelectiveScan(const SelectiveScanArgs<float>& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
// Queues one kernel. Error: kInternal for shapes that the contract excludes.
Status SelectiveScan(const SelectiveScanArgs<BFloat16>& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
