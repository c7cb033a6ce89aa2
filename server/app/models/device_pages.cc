// SPDX-License-Identifier: Apache-2.0
#include "server/app/models/device_pages.h"

#include "kernels/base/cuda/device.h"

namespace diffserve {

Result<double> FreeForPages(Model& model, const SessionPlan& plan) {
  if (plan.needs.fills_the_gpu) {
    Result<KvCache> few = model.MakeKvCache(
        plan.layouts,
        {.num_pages = 1, .num_window_pages = plan.engine.num_window_pages > 0 ? 1 : 0});
    if (!few.ok()) return few.status();
    DS_RETURN_IF_ERROR(model.WarmUp(*few));
  }
  const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
  if (!memory.ok()) return memory.status();
  return static_cast<double>(memory->free_bytes);
}

}  // namespace diffserve
