// SPDX-License-Identifier: Apache-2.0
// DeviceError: a failure of the device in a step. The engine fails with its message.
#pragma once

#include <stdexcept>

#include "kernels/base/status.h"

namespace diffserve {

class DeviceError : public std::runtime_error {
 public:
  explicit DeviceError(const Status& status) : std::runtime_error(status.message()) {}
};

}  // namespace diffserve
