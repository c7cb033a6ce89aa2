// SPDX-License-Identifier: Apache-2.0
// The functions of a build without the CUDA backend.
#include "models/model_cuda.h"

namespace diffserve::cuda {
namespace {

Status NotCompiledIn() {
  return Status(StatusCode::kUnimplemented, "this build has no CUDA backend");
}

}  // namespace

Status CheckModel(const std::string&, const ModelConfig&, WeightFormat) { return NotCompiledIn(); }
size_t StepBytes(const ModelConfig&, StepBytesOptions) { return 0; }
Result<std::unique_ptr<Model>> LoadModel(LoadOptions, Checkpoint&, ThreadPool&) {
  return NotCompiledIn();
}

}  // namespace diffserve::cuda
