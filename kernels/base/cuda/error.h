// SPDX-License-Identifier: Apache-2.0
// How CUDA's errors look outside the CUDA files: Status values whose message names the call.
//   kResourceExhausted  an allocation failed; the message has the size asked for and what was free
//   kNotFound           no driver, or a device that this build has no code for
//   kDeviceLost         the context is lost: an earlier kernel did something illegal, or the
//                       hardware failed. Every later call on the device fails too: end the
//                       streams with an error and exit. Also a device that is busy or missing.
//   kInternal           everything else: we passed a wrong argument
#pragma once

#include <string_view>

#include "kernels/base/status.h"

namespace diffserve::cuda {

// For launchers that return a cudaError_t as int (0 is success): as ToStatus of error.cuh.
Status StatusOfCudaError(int error, std::string_view call);

inline bool IsDeviceLost(const Status& status) { return status.code() == StatusCode::kDeviceLost; }

}  // namespace diffserve::cuda
