// SPDX-License-Identifier: Apache-2.0
// MemoryPlan: how a session's memory is divided, as a value that follows from values: what the
// weights leave, the lengths, the bytes of the layouts. It asks no device and changes nothing.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/contract/options.h"
#include "kernels/base/status.h"
#include "server/app/options.h"

namespace diffserve {

// Minimum and desired tokens of the KV pages.
struct KvDemand {
  int64_t least_tokens = 0;
  int64_t wanted_tokens = 0;
};

// Bytes in all layers.
struct LayoutBytes {
  size_t page = 0;         // of one page id, all groups, with the draft model's part
  size_t window_page = 0;  // likewise of the layers with a window, if their ids are their own
  size_t slot = 0;         // of a sequence's state
};

struct MemoryDemand {
  bool on_gpu = false;
  double free_bytes = 0;  // that the weights, and on a GPU also the largest step, leave; above 0
  MemorySize asked;       // --kv-cache-memory
  EngineOptions engine;   // with its lengths: page size, context, window
  LayoutBytes layout;
  KvDemand kv;
  // Number of sequences that run without an engine; 0: an engine runs.
  int sequences = 0;
  bool fills_the_gpu = false;       // pages take the maximum share of a GPU's memory
  bool may_stop_proposing = false;  // if the states that proposals go back to need the memory
};

// Pages, and what sequences and snapshots keep besides them.
struct MemoryPlan {
  int num_pages = 0;
  int num_state_slots = 0;
  int num_window_pages = 0;
  int max_num_seqs = 0;  // as asked, or as many as fit
  bool stops_proposing = false;

  size_t state_bytes(const LayoutBytes& layout) const {
    return layout.slot * static_cast<size_t>(num_state_slots) +
           layout.window_page * static_cast<size_t>(num_window_pages);
  }
};

// Error: --kv-cache-memory is more than what is free, or the least that is needed does not fit.
// `advice(bytes)`: for the end of a message, which formats make the weights fit these bytes.
using FormatsThatFit = std::function<std::string(double bytes)>;
Result<MemoryPlan> PlanMemory(const MemoryDemand& demand, const FormatsThatFit& advice);

// "12.3 MiB"
std::string MiB(double bytes);

}  // namespace diffserve
