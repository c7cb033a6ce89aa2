// SPDX-License-Identifier: Apache-2.0
// For the server that runs its CUDA backend on the CPU. DIFFSERVE_SHIM_OPERATIONS: the context is
// lost after N operations of its streams. DIFFSERVE_SHIM_DEVICES: how many GPUs there are, of
// which CUDA_VISIBLE_DEVICES, a list of numbers, leaves as many as it has.
// DIFFSERVE_SHIM_WITHOUT_CUBLAS takes its cuBLASLt away.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tests/kernels/shim/host_calls.h"
#include "tests/kernels/shim/simulated_products.h"

namespace diffserve::shim {
namespace {

const bool is_set = [] {
  if (const char* operations = std::getenv("DIFFSERVE_SHIM_OPERATIONS"))
    FailLater(std::atoi(operations), cudaErrorIllegalAddress);
  if (const char* devices = std::getenv("DIFFSERVE_SHIM_DEVICES"))
    simulated_device.count = std::atoi(devices);
  if (const char* listed = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string_view list = listed;
    const int count = list.empty() ? 0 : 1 + static_cast<int>(std::ranges::count(list, ','));
    simulated_device.count = std::min(simulated_device.count, count);
  }
  simulated_products.is_installed = std::getenv("DIFFSERVE_SHIM_WITHOUT_CUBLAS") == nullptr;
  return true;
}();

}  // namespace
}  // namespace diffserve::shim
