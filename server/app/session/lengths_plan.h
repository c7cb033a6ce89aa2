// SPDX-License-Identifier: Apache-2.0
// LengthsPlan: the second step of a session's plan: how long pages and sequences are, and how far
// layers look back. It follows from the flags, the model's config and the device.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "engine/contract/options.h"
#include "kernels/base/status.h"
#include "models/model_config.h"

namespace diffserve {

struct LengthsDemand {
  std::string model_dir = {};  // for messages
  bool on_gpu = false;
  EngineOptions engine = {};        // as the flags say; page_size and max_model_len may be 0
  int state_snapshot_interval = 0;  // --state-snapshot-interval
  bool keeps_prefixes = true;       // an engine runs, so there may be a prefix cache
  bool has_window_pages = true;     // layers with a window have page ids of their own
};

struct LengthsPlan {
  int page_size = 0;
  int max_model_len = 0;
  int window = 0;  // as EngineOptions', likewise below
  int state_snapshot_interval = 0;
  bool enable_prefix_caching = true;
};

// Error: a flag asks for what the model or the device does not have.
Result<LengthsPlan> PlanLengths(const LengthsDemand& demand, const ModelConfig& config);

}  // namespace diffserve
