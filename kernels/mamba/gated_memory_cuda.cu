// SPDX-License-Identifier: Apache-2.0
#include "kernels/mamba/gated_memory.h"
#include "kernels/ops/row_access.cuh"

namespace diffserve::cuda {

// Grid: tokens, slices of kRowThreads * kVec columns.
template <int kVec>
__global__ void __launch_bounds__(kRowThreads) GatedMemoryKernel(GatedMemoryArgs<BFloat16> args) {
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x) * kVec;
  if (i >= args.width) return;
  const int64_t at = int64_t{blockIdx.x} * args.width + i;
  float z[kVec], memory[kVec];
  LoadRow<kVec>(args.gate + blockIdx.x * args.gate_stride + i, z);
  LoadRow<kVec>(args.memory + at, memory);
#pragma unroll
  for (int k = 0; k < kVec; ++k) z[k] = z[k] / (1.0f + expf(-z[k])) * memory[k];
  StoreRow<kVec>(z, args.out + at);
}

Status GatedMemory(const GatedMemoryArgs<BFloat16>& args, const Stream& stream) {
  if (args.gate_stride < args.width)
    return Status(StatusCode::kInternal, "the gate's rows are closer than their width");
  if (args.num_tokens == 0) return Status();
  const bool wide = args.gate_stride % kVecWide == 0 &&
                    TakesWideAccesses(args.width, {args.gate, args.memory, args.out});
  return Launch("GatedMemory", SlicedTokens(args.num_tokens, args.width, wide ? kVecWide : 1),
                stream, wide ? GatedMemoryKernel<kVecWide> : GatedMemoryKernel<1>, args);
}

}  // namespace diffserve::cuda
