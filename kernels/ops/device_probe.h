// What a CUDA device can do right now, as machine_probe.h for the CPU: the divisors for speed
// figures. Each measurement takes some 10 ms. In every build; without the CUDA backend Open fails.
#pragma once

#include <memory>

#include "kernels/base/status.h"

namespace diffserve::cuda {

class DeviceProbe {
 public:
  // Takes 2 GiB of the device's memory, or less where less is free. Errors: as OpenDevice,
  // kResourceExhausted, kNotFound without cuBLASLt.
  static Result<std::unique_ptr<DeviceProbe>> Open();
  ~DeviceProbe();

  // Of a kernel that reads a buffer far larger than the L2 cache once.
  Result<double> MeasureReadBytesPerSecond();
  // Of a bfloat16 product of 8192 x 8192 matrices by cuBLASLt; a multiply-add counts as two.
  Result<double> MeasureMatrixFlopsPerSecond();

 private:
  class State;
  explicit DeviceProbe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace diffserve::cuda
