// SPDX-License-Identifier: Apache-2.0
// The short convolution of a Mamba layer, the contract of both backends. Each channel of a token is
// combined with those of the few tokens before it, and goes through SiLU (arXiv 2312.00752, section
// 3.4).
//
//   out[t][c] = silu(bias[c] + sum over j < width of taps[j][c] * x[t - width + 1 + j][c]),
//   silu(z) = z / (1 + exp(-z))
//
// Rows before the batch's own are in the sequence's state: its last width - 1 rows of x, [width -
// 1, channels], as float32, so without loss. A new sequence has zeros there. Activations are
// float32 on the CPU, bfloat16 on a device.
//
// *Invariants*: an element of `out` is one fixed chain of float32 operations. So the batch, the
// chunks of a sequence and the number of threads change no bit of it or of the state. Rows outside
// every sequence, and slots that are `to` of none, are not written.
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

inline constexpr int kConvWidthMin = 2;
inline constexpr int kConvWidthMax = 8;

// T: type of the activations, which implies the backend.
template <typename T>
struct CausalConvArgs {
  StateBatch batch;
  const T* x = nullptr;         // [rows, channels]; rows are x_stride elements apart
  int64_t x_stride = 0;         // at least `channels`: x may be part of wider rows
  const float* taps = nullptr;  // [width, channels], as ConvTaps makes them
  const float* bias = nullptr;  // [channels]; nullptr: no bias
  T* out = nullptr;             // [rows, channels]; shares no memory with x
  StateSlots state;             // [width - 1, channels] per slot
  int channels = 0;
  int width = 0;  // kConvWidthMin to kConvWidthMax

  int64_t StateFloats() const { return (int64_t{width} - 1) * channels; }
};

// Makes [width, channels] from a checkpoint's [channels, 1, width].
std::vector<float> ConvTaps(std::span<const float> weight, int channels, int width);

void CausalConvRef(const CausalConvArgs<float>& args);

namespace cpu {
void CausalConv(const CausalConvArgs<float>& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
// Queues one kernel. Error: kInternal for shapes that the contract excludes.
Status CausalConv(const CausalConvArgs<BFloat16>& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
