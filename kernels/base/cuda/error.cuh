// SPDX-License-Identifier: Apache-2.0
// Converts cudaError to Status, for the files that call CUDA. It also clears the error that CUDA
// remembers for the thread, so that the next check does not report it again.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "kernels/base/cuda/error.h"

namespace diffserve::cuda {

// Whether `error` poisons the context, so that every later call in this process fails.
bool IsSticky(cudaError_t error);

// Ok for cudaSuccess. Otherwise "<call>: <CUDA's sentence> (<CUDA's name>)" with a code from the
// list in error.h. If the context is lost, the message says that any earlier kernel may be the
// cause.
Status ToStatus(cudaError_t error, std::string_view call);

}  // namespace diffserve::cuda
