// SPDX-License-Identifier: Apache-2.0
// The DeviceTransfer of CUDA: one stream of its own beside that of the steps.
#pragma once

#include <memory>

#include "kernels/base/cuda/stream.h"
#include "models/device_transfer.h"

namespace diffserve::cuda {

// `steps` outlives the transfer.
Result<std::shared_ptr<DeviceTransfer>> MakeTransfer(const Stream& steps);

}  // namespace diffserve::cuda
