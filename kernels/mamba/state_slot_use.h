// SPDX-License-Identifier: Apache-2.0
// The slots that a step reads a sequence's state from and writes it to, as the engine plans and a
// model executes. Numbers only.
#pragma once

#include <cstdint>
#include <vector>

namespace diffserve {

// The state after `num_tokens` of a sequence's tokens in a step, saved to its own slot.
struct StateSnapshot {
  int num_tokens = 0;
  int32_t slot = 0;
};

// The slots of a sequence's state before and after a step; if they differ, the first stays
// unchanged. The state after the step is in `to`, unless the last snapshot holds it.
struct StateSlotUse {
  int32_t from = 0;
  int32_t to = 0;
  std::vector<StateSnapshot> snapshots = {};  // ascending; none is overwritten
};

}  // namespace diffserve
