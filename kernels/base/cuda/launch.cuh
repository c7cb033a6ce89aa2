// SPDX-License-Identifier: Apache-2.0
// The one way to launch a kernel: through CUDA's function, not <<<>>>. So the error belongs to this
// launch, and the tests' CPU shim compiles the same source with a C++ compiler.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/cuda/error.cuh"
#include "kernels/base/cuda/stream.h"

namespace diffserve::cuda {

struct LaunchShape {
  dim3 grid;     // x up to 2^31 - 1, y and z up to 65,535
  dim3 threads;  // per thread block; up to 1,024
  size_t shared_bytes = 0;
  // The operation before it on the stream is a kernel, for which this one waits by itself
  // (WaitForPrevious in ptx.cuh). From Hopper on.
  bool is_dependent = false;
};

// Queues kernel(arguments...) on the stream. Errors of the running kernel surface at a later call.
// REQUIRES: no dimension of the grid is 0.
template <typename... Parameters, typename... Arguments>
Status Launch(std::string_view name, const LaunchShape& shape, const Stream& stream,
              void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.handle();
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &dependent;
  config.numAttrs = shape.is_dependent ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel,
                                               std::forward<Arguments>(arguments)...);
  return error == cudaSuccess ? Status() : ToStatus(error, "launching " + std::string(name));
}

}  // namespace diffserve::cuda
