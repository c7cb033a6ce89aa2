// Waves: the order in which the states of a step's sequences are taken on. A sequence whose state
// is kept on the way has its tokens in several waves, each from the snapshot before on; a kernel
// runs once a wave. All other sequences are in the first alone.
#pragma once

#include <vector>

#include "kernels/mamba/state_batch.h"
#include "models/model.h"

namespace diffserve {

// Tokens [first, first + num_tokens) of those that a sequence has in a step, which lie in rows
// [first_row, first_row + num_tokens) of what the kernels are given.
struct StatePiece {
  int position = 0;  // of the sequence's first token in the step
  int first_row = 0;
  int first = 0;
  int num_tokens = 0;
};

using StateWaves = std::vector<std::vector<StateSequence>>;

// Adds the piece to the waves. REQUIRES: num_tokens > 0; the pieces of a sequence are added to
// waves that run in the order of its tokens, no two of them to the same.
void AddToWaves(const StatePiece& piece, const StateSlotUse& use, StateWaves& waves);

}  // namespace diffserve
