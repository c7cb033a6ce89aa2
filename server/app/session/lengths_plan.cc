// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/lengths_plan.h"

#include <algorithm>

#include "kernels/base/cuda/device.h"
#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr int kCpuPageSize = 16;

Result<int> PageSize(const LengthsDemand& demand) {
  const int asked = demand.engine.page_size;
  if (!demand.on_gpu) return asked == 0 ? kCpuPageSize : asked;
  if (asked == 0 || asked == cuda::kPageSize) return cuda::kPageSize;
  return NotAllowed("--page-size is " + std::to_string(asked) + " on a GPU",
                    std::to_string(cuda::kPageSize) + " (or --device cpu)", "--page-size");
}

Result<int> MaxModelLen(const LengthsDemand& demand, int max_positions) {
  const int asked = demand.engine.max_model_len;
  if (asked <= max_positions) return asked == 0 ? max_positions : asked;
  return NotAllowed("--max-model-len is " + std::to_string(asked),
                    RangeText(1, max_positions) + " (max_position_embeddings of " +
                        demand.model_dir + "/config.json)",
                    "--max-model-len");
}

// Pages do not contain states, so the prefix cache finds a prefix only where a state snapshot is
// kept.
Status PlanSnapshots(const LengthsDemand& demand, LengthsPlan* plan) {
  plan->state_snapshot_interval = demand.state_snapshot_interval;
  if (plan->state_snapshot_interval % plan->page_size != 0) {
    return NotAllowed(
        "--state-snapshot-interval is " + std::to_string(plan->state_snapshot_interval),
        "0, a multiple of --page-size, " + std::to_string(plan->page_size),
        "--state-snapshot-interval");
  }
  plan->enable_prefix_caching = plan->state_snapshot_interval > 0;
  return {};
}

}  // namespace

Result<LengthsPlan> PlanLengths(const LengthsDemand& demand, const ModelConfig& config) {
  LengthsPlan plan = {.state_snapshot_interval = demand.engine.state_snapshot_interval,
                      .enable_prefix_caching = demand.engine.enable_prefix_caching};
  DS_RETURN_IF_ERROR(Assign(&plan.page_size, PageSize(demand)));
  DS_RETURN_IF_ERROR(Assign(&plan.max_model_len, MaxModelLen(demand, config.max_positions)));
  plan.window = demand.engine.window;
  for (const LayerConfig& layer : config.layers) {
    if (demand.has_window_pages)
      plan.window = std::max(plan.window, std::min(layer.window, plan.max_model_len));
  }
  const bool needs_snapshots = config.num_state_layers() > 0 || plan.window > 0;
  if (needs_snapshots && demand.keeps_prefixes && plan.enable_prefix_caching)
    DS_RETURN_IF_ERROR(PlanSnapshots(demand, &plan));
  return plan;
}

}  // namespace diffserve
