// SPDX-License-Identifier: Apache-2.0
// WeightsPlan: the first step of a session's plan: which model runs on which device, and what its
// weights take there. No weights are read.
#pragma once

#include <string>

#include "models/model.h"
#include "server/app/options.h"

namespace diffserve {

struct WeightsPlan {
  ModelOptions model;
  ModelSummary summary;
  std::string device_name;    // "cpu", or what the driver calls the GPU
  std::string driver;         // of the GPU; empty on the CPU
  std::string gpu_uuid;       // likewise
  size_t matrix_library = 0;  // version of cuBLASLt; 0 on the CPU
  bool on_gpu() const { return model.device == Device::kCuda; }
};

// `model`: as it would run on the CPU. Error: no such GPU, or none with kernels for the model, if
// the CPU is not allowed.
Result<WeightsPlan> PlanWeights(const DeviceChoice& asked, const ModelOptions& model);

}  // namespace diffserve
