// SPDX-License-Identifier: Apache-2.0
// A Model on a CUDA device: its requirements, and how it is loaded. The whole step runs there, from
// token ids to drawn tokens (step_runner_cuda.h). A build without the CUDA backend has
// model_absent.cc. No CUDA type appears here.
#pragma once

#include <memory>
#include <string>

#include "kernels/base/thread_pool.h"
#include "models/checkpoint.h"
#include "models/model.h"
#include "models/weights.h"

namespace diffserve::cuda {

// Whether there are kernels for this model. Errors: kUnimplemented without the backend; otherwise
// kInvalidArgument with found and allowed.
Status CheckModel(const std::string& model_dir, const ModelConfig& config, WeightFormat format);

// Device memory for steps within the limits.
struct StepBytesOptions {
  StepLimits limits;
  LogitQuant logit_quant;
  WeightFormat linear_format = WeightFormat::kBFloat16;
  bool batch_invariant = false;
};
size_t StepBytes(const ModelConfig& config, StepBytesOptions options);

struct LoadOptions {
  int gpu = 0;
  ModelConfig config;
  WeightFormat linear_format = WeightFormat::kBFloat16;
  CpuIsa isa = kBaseCpuIsa;  // quantises
  int max_positions = 0;
  WeightSizes sizes;
  StepLimits limits;
  LogitQuant logit_quant;
  bool batch_invariant = false;
};

// Opens the device, uploads the weights, allocates the memory of steps within the limits, and runs
// one small step. Model::WarmUp runs larger ones. Errors: as OpenDevice,
// kResourceExhausted with the numbers, and those of reading.
Result<std::unique_ptr<Model>> LoadModel(LoadOptions options, Checkpoint& checkpoint,
                                         ThreadPool& pool);

}  // namespace diffserve::cuda
