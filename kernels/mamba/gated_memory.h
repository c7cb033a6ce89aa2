// The elementwise part of a gated memory unit (arXiv 2507.06607, section 2): what a scan put out
// for a token is read again by later layers, each through a gate of its own. The contract of both
// backends.
//
//   out[t][i] = silu(gate[t][i]) * memory[t][i],   silu(z) = z / (1 + exp(-z))
//
// in float32, and rounded once. Activations are float32 on the CPU, bfloat16 on a device.
// *Invariants*: each element is on its own: neither the batch nor the threads change a bit.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace diffserve {

enum class CpuIsa;
class Status;
class ThreadPool;

template <typename T>
struct GatedMemoryArgs {
  const T* gate = nullptr;    // [num_tokens, width], a row gate_stride elements behind the one
                              // before
  int64_t gate_stride = 0;    // at least `width`: the gate may be a part of wider rows
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
// Queues one kernel. 16-byte aligned pointers with a width and a stride that are multiples of 8
// take 16-byte accesses; everything else is correct and slower.
Status GatedMemory(const GatedMemoryArgs<BFloat16>& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
