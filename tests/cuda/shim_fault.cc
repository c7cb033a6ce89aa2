// SPDX-License-Identifier: Apache-2.0
// For the server that runs its CUDA backend on the CPU: the context is lost after
// DIFFSERVE_SHIM_OPERATIONS operations of its streams, and DIFFSERVE_SHIM_WITHOUT_CUBLAS takes its
// cuBLASLt away.
#include <cstdlib>

#include "tests/kernels/shim/host_calls.h"
#include "tests/kernels/shim/simulated_products.h"

namespace diffserve::shim {
namespace {

const bool is_set = [] {
  const char* operations = std::getenv("DIFFSERVE_SHIM_OPERATIONS");
  if (operations != nullptr) FailLater(std::atoi(operations), cudaErrorIllegalAddress);
  simulated_products.is_installed = std::getenv("DIFFSERVE_SHIM_WITHOUT_CUBLAS") == nullptr;
  return operations != nullptr;
}();

}  // namespace
}  // namespace diffserve::shim
