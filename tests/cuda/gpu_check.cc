// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's tests, its bench and the server in one program, so that an archive for another
// machine (deploy/gpu_check.sh) has one copy of the kernels.
//   gpu_check cuda_device         the device, as one JSON object
//   gpu_check cuda_cases          the golden cases that have kernels for their shape
//   gpu_check cuda_test [...]     gtest's arguments
//   gpu_check cuda_bench [...]    cuda_bench's
//   gpu_check COMMAND [...]       a command of diffserve, whose steps can be held
#include <gmock/gmock.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "tests/bench/cuda_bench.h"
#include "tests/cuda/device_array.h"
#include "tests/e2e/gated_server.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

int PrintDevice() {
  const Result<cuda::DeviceInfo> device = cuda::OpenDevice(0);
  if (!device.ok()) {
    std::printf("%s\n", device.status().message().c_str());
    return 1;
  }
  std::printf(
      "{\"name\": \"%s\", \"compute_capability\": %d, \"num_sms\": %d, \"memory_bytes\": %zu, "
      "\"simulated\": %s}\n",
      device->name.c_str(), device->compute_capability, device->num_sms, device->memory_bytes,
      testing::kHasGpu ? "false" : "true");
  return 0;
}

int PrintCases() {
  for (const std::string& name : GoldenCaseNames()) {
    ModelOptions options;
    options.model_dir = GoldenCasesDir() + "/" + name;
    options.device = Device::kCuda;
    if (InspectModel(options).ok()) std::printf("%s\n", name.c_str());
  }
  return 0;
}

int RunTests(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace diffserve

int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  if (part == "cuda_device") return diffserve::PrintDevice();
  if (part == "cuda_cases") return diffserve::PrintCases();
  if (part == "cuda_test") return diffserve::RunTests(argc - 1, argv + 1);
  if (part == "cuda_bench") return diffserve::bench::RunCudaBench(argc - 1, argv + 1);
  return diffserve::RunGatedProgram(argc, argv);
}
