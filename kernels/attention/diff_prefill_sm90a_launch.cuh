// The host's side of the Hopper prefill kernels, for DiffPrefill alone.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_attention_cuda.h"

namespace diffserve::cuda {

// Queries a tile of the kernel for this spec and these pages on this device; 0: there is none.
int HopperPrefillQueries(const DiffSpec& spec, DType dtype, const DeviceLimits& limits);

// REQUIRES: HopperPrefillQueries is args.tiling.rows_per_tile.
cudaError_t LaunchHopperPrefill(const DiffAttentionArgs& args, const DeviceLimits& limits,
                                cudaStream_t stream);

}  // namespace diffserve::cuda
