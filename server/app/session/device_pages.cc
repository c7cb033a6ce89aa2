// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/device_pages.h"

#include <algorithm>

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
  const auto free = static_cast<double>(memory->free_bytes);
  if (plan.room.gpu_share <= 0) return free;
  // Counted, not measured, because another process may be loading on the GPU too.
  const size_t taken = plan.weight_memory_bytes() + plan.summary.device_step_bytes;
  return std::min(free, static_cast<double>(plan.room.free_bytes) - static_cast<double>(taken));
}

}  // namespace diffserve
