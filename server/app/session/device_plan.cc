// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/device_plan.h"

#include <string>
#include <utility>

#include "kernels/base/cuda/device.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/process/log.h"

namespace diffserve {

Status ChooseDevice(const DeviceChoice& asked, SessionPlan* plan) {
  const bool must_be_gpu = asked.kind == DeviceChoice::Kind::kGpu;
  if (must_be_gpu || (asked.kind == DeviceChoice::Kind::kAuto && cuda::MayHaveGpu())) {
    const Result<cuda::DeviceInfo> gpu = cuda::OpenUsableDevice(asked.gpu.value_or(0));
    if (!gpu.ok() && must_be_gpu)
      return Status(gpu.status().code(), "--device cuda: " + gpu.status().message(), "--device");
    if (!gpu.ok())  // a warning: a build for CPUs beside a driver
      Log(cuda::IsCompiledIn() ? LogLevel::kInfo : LogLevel::kWarning, "gpu_not_used",
          {{"reason", gpu.status().message()}});
    if (gpu.ok()) {
      plan->model.device = Device::kCuda;
      plan->model.gpu = gpu->ordinal;
      Result<ModelSummary> summary = InspectModel(plan->model);
      if (summary.ok()) {
        plan->device_name = cuda::Describe(*gpu);
        plan->driver = gpu->driver;
        plan->gpu_uuid = gpu->uuid;
        plan->summary = std::move(*summary);
        return Status();
      }
      if (must_be_gpu) return summary.status();
      Log(LogLevel::kWarning, "gpu_not_used",
          {{"gpu", gpu->name}, {"reason", summary.status().message()}});
    }
  }
  plan->model.device = Device::kCpu;
  Result<ModelSummary> summary = InspectModel(plan->model);
  if (!summary.ok()) return summary.status();
  plan->device_name = "cpu";
  plan->summary = std::move(*summary);
  return Status();
}

}  // namespace diffserve
