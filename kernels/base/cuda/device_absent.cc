// SPDX-License-Identifier: Apache-2.0
// The functions of a build without the CUDA backend.
#include <unistd.h>

#include "kernels/base/cuda/device.h"

namespace diffserve::cuda {
namespace {

Status NotCompiledIn() {
  return Status(StatusCode::kUnimplemented, "this build has no CUDA backend");
}

}  // namespace

bool IsCompiledIn() { return false; }
bool MayHaveGpu() { return access("/dev/nvidiactl", F_OK) == 0; }
Result<std::vector<DeviceInfo>> ListDevices() { return NotCompiledIn(); }
Status CheckDevice(const DeviceInfo&) { return NotCompiledIn(); }
Result<DeviceInfo> OpenDevice(int) { return NotCompiledIn(); }
Result<DeviceMemory> MemoryOfDevice() { return NotCompiledIn(); }
std::string NameOfDevice(int ordinal) { return "cuda:" + std::to_string(ordinal); }
std::string Describe(const DeviceInfo& device) { return device.name; }

}  // namespace diffserve::cuda
