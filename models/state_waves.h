// SPDX-License-Identifier: Apache-2.0
// Waves: the order in which a step advances its sequences' states. A sequence with snapshots has
// its tokens in several waves; each starts from the previous snapshot. A kernel runs once per wave.
// All other sequences are only in the first wave.
#pragma once

#include <vector>

#include "kernels/mamba/state_batch.h"
#include "models/model.h"

namespace diffserve {

// Tokens [first, first + num_tokens) of a sequence's tokens in a step. They are in rows [first_row,
// first_row + num_tokens) of the kernels' input.
struct StatePiece {
  int position = 0;  // of the sequence's first token in the step
  int first_row = 0;
  int first = 0;
  int num_tokens = 0;
};

using StateWaves = std::vector<std::vector<StateSequence>>;

// Adds the piece to the waves. REQUIRES: num_tokens > 0. The pieces of a sequence are added to
// waves in token order, no two of them to the same wave.
void AddToWaves(const StatePiece& piece, const StateSlotUse& use, StateWaves& waves);

}  // namespace diffserve
