// SPDX-License-Identifier: Apache-2.0
#include "kernels/mamba/activation_lanes.h"
#include "kernels/mamba/mamba_kernel.h"

namespace diffserve::DS_ISA {
namespace {

void GatedMemory(const GatedMemoryArgs<float>& args, int begin, int end) {
  for (int64_t token = begin; token < end; ++token) {
    const float* gate = args.gate + token * args.gate_stride;
    const float* memory = args.memory + token * args.width;
    float* out = args.out + token * args.width;
    for (int i = 0; i < args.width; i += kLanes) {
      const int n = MinInt(args.width - i, kLanes);
      StoreFirst(out + i, n, Mul(Silu(LoadFirst(gate + i, n)), LoadFirst(memory + i, n)));
    }
  }
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const GatedMemoryKernels& GatedMemoryKernels::DS_ISA() {
  static constexpr GatedMemoryKernels kKernels = {.run = DS_ISA::GatedMemory};
  return kKernels;
}

}  // namespace diffserve
