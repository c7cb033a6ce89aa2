// SPDX-License-Identifier: Apache-2.0
// The elementwise part of a gated memory unit (arXiv 2507.06607, section 2), the contract of both
// backends. Later layers read a token's scan output again, each through its own gate.
//
//   out[t][i] = silu(gate[t][i]) * memory[t][i],   silu(z) = z / (1 + exp(-z))
//
// in float32, and rounded once. Activations are float32 on the CPU, bfloat16 on a device.
// *Invariants*: elements are independent: neither the batch nor the threads change a bit.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace diffserve {

enum class CpuIsa;
class Status;
class ThreadPool;

template <typename T>
struct GatedMemoryArgs {
  // [num_tokens, width]; rows are gate_stride elements apart.
  const T* gate = nullptr;
  int64_t gate_stride = 0;    // at least `width`: the gate may be part of wider rows
  const T* memory = nullptr;  // [num_tokens, width]
  T* out = nullptr;           // [num_tokens, width]; may be `memory`
  int num_tokens = 0;
  int width = 0;
};

void GatedMemoryRef(const GatedMemoryArgs<float>& args);

namespace cpu {
void GatedMemory(const GatedMemoryArgs<float>& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
// Queues one kernel. 16-byte aligned pointers, with a width and a stride that are multiples of 8,
// take 16-byte accesses. Everything else is correct but slower.
Status GatedMemory(const GatedMemoryArgs<BFloat16>& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
