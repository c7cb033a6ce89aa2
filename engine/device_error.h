// SPDX-License-Identifier: Apache-2.0
// DeviceError: a failure of the device in a step. The engine fails with its status.
#pragma once

#include <stdexcept>
#include <utility>

#include "kernels/base/status.h"

namespace diffserve {

class DeviceError : public std::runtime_error {
 public:
  explicit DeviceError(Status status)
      : std::runtime_error(status.message()), status_(std::move(status)) {}

  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace diffserve
