// SPDX-License-Identifier: Apache-2.0
// Measures what a CUDA device can do right now, as machine_probe.h does for the CPU: the divisors
// for speed figures. Each measurement takes some 10 ms. Present in every build; without the CUDA
// backend Open fails.
#pragma once

#include <memory>

#include "kernels/base/status.h"

namespace diffserve::cuda {

class DeviceProbe {
 public:
  // Takes 2 GiB of the device's memory, or less if less is free. Errors: as OpenDevice;
  // kResourceExhausted; kNotFound without cuBLASLt.
  static Result<std::unique_ptr<DeviceProbe>> Open(int gpu);
  ~DeviceProbe();

  // Rate of a kernel that reads a buffer far larger than the L2 cache once.
  Result<double> MeasureReadBytesPerSecond();
  // Rate of a bfloat16 product of 8192 x 8192 matrices by cuBLASLt; a multiply-add counts as two.
  Result<double> MeasureMatrixFlopsPerSecond();

 private:
  class State;
  explicit DeviceProbe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace diffserve::cuda
