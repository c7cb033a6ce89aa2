// SPDX-License-Identifier: Apache-2.0
// For the server that runs its CUDA backend on the CPU: the context is lost after
// DIFFSERVE_SHIM_OPERATIONS operations of its streams.
#include <cstdlib>

#include "tests/kernels/shim/host_calls.h"

namespace diffserve::shim {
namespace {

const bool is_set = [] {
  const char* operations = std::getenv("DIFFSERVE_SHIM_OPERATIONS");
  if (operations != nullptr) FailLater(std::atoi(operations), cudaErrorIllegalAddress);
  return operations != nullptr;
}();

}  // namespace
}  // namespace diffserve::shim
