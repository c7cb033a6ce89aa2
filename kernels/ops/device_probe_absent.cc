// SPDX-License-Identifier: Apache-2.0
// The functions of a build without the CUDA backend.
#include "kernels/ops/device_probe.h"

namespace diffserve::cuda {

class DeviceProbe::State {};
DeviceProbe::DeviceProbe(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceProbe::~DeviceProbe() = default;

namespace {

Status NotCompiledIn() {
  return Status(StatusCode::kUnimplemented, "this build has no CUDA backend");
}

}  // namespace

Result<std::unique_ptr<DeviceProbe>> DeviceProbe::Open(int) { return NotCompiledIn(); }
Result<double> DeviceProbe::MeasureReadBytesPerSecond() { return NotCompiledIn(); }
Result<double> DeviceProbe::MeasureMatrixFlopsPerSecond() { return NotCompiledIn(); }

}  // namespace diffserve::cuda
