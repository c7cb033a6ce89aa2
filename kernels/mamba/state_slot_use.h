// Which slots a step reads a sequence's state from and writes it to: what the engine plans and a
// model does. Numbers only.
#pragma once

#include <cstdint>
#include <vector>

namespace diffserve {

// A sequence's state after so many of the tokens that it has in a step goes to a slot of its own.
struct StateSnapshot {
  int num_tokens = 0;
  int32_t slot = 0;
};

// The slots of a sequence's state before a step and after it; where they differ, the first stays as
// it is. The state after the step is in `to`, unless the last snapshot is that.
struct StateSlotUse {
  int32_t from = 0;
  int32_t to = 0;
  std::vector<StateSnapshot> snapshots = {};  // ascending; each stays as it is
};

}  // namespace diffserve
