// SPDX-License-Identifier: Apache-2.0
// The GPUs that CUDA shows, as a process of this program says that ends at once: so this process
// has no CUDA context, which would take memory of each GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

struct VisibleGpu {
  std::string name;
  std::string refusal;  // why no model runs there; empty: models do
  int memory_mib = 0;
};

struct VisibleGpus {
  std::vector<VisibleGpu> all;  // by CUDA's number
  std::string reason;           // why there is none
};

// Waits for the process. `hidden_variables`: as ChildProcess::Start. Error: kUnavailable.
Result<VisibleGpus> ListVisibleGpus(const std::vector<std::string>& hidden_variables);
// Reads what `diffserve devices --json` prints.
Result<VisibleGpus> ParseVisibleGpus(std::string_view json);

}  // namespace diffserve
