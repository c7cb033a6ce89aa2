// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/weights_plan.h"

#include <utility>

#include "kernels/base/cuda/device.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/process/log.h"

namespace diffserve {
namespace {

Result<WeightsPlan> PlanOn(const cuda::DeviceInfo* gpu, const ModelOptions& model) {
  WeightsPlan plan;
  plan.model = model;
  plan.device_name = "cpu";
  plan.model.device = gpu == nullptr ? Device::kCpu : Device::kCuda;
  if (gpu != nullptr) plan.model.gpu = gpu->ordinal;
  DS_RETURN_IF_ERROR(Assign(&plan.summary, InspectModel(plan.model)));
  plan.model.config_text = plan.summary.config_text;
  if (gpu == nullptr) return plan;
  plan.device_name = cuda::Describe(*gpu);
  plan.driver = gpu->driver;
  plan.gpu_uuid = gpu->uuid;
  plan.matrix_library = cuda::MatrixLibraryVersion();
  return plan;
}

}  // namespace

Result<WeightsPlan> PlanWeights(const DeviceChoice& asked, const ModelOptions& model) {
  const bool must_be_gpu = asked.kind == DeviceChoice::Kind::kGpu;
  if (!must_be_gpu && (asked.kind != DeviceChoice::Kind::kAuto || !cuda::MayHaveGpu()))
    return PlanOn(nullptr, model);
  const Result<cuda::DeviceInfo> gpu = cuda::OpenUsableDevice(asked.gpu.value_or(0));
  if (!gpu.ok() && must_be_gpu)
    return Status(gpu.status().code(), "--device cuda: " + gpu.status().message(), "--device");
  if (!gpu.ok()) {  // a warning: a build for CPUs beside a driver
    Log(cuda::IsCompiledIn() ? LogLevel::kInfo : LogLevel::kWarning, "gpu_not_used",
        {{"reason", gpu.status().message()}});
    return PlanOn(nullptr, model);
  }
  Result<WeightsPlan> plan = PlanOn(&gpu.value(), model);
  if (plan.ok() || must_be_gpu) return plan;
  Log(LogLevel::kWarning, "gpu_not_used",
      {{"gpu", gpu->name}, {"reason", plan.status().message()}});
  return PlanOn(nullptr, model);
}

}  // namespace diffserve
