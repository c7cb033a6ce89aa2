// SPDX-License-Identifier: Apache-2.0
// What the results of a step mean for a sequence: its new tokens, and whether it ends. Called by
// the Scheduler when it commits a step.
#pragma once

#include "engine/policy/sequence.h"
#include "engine/policy/step_plan.h"

namespace diffserve {

// Takes the draws of a step that ends at position `end`. The first draw is the sequence's next
// token. The draw after a proposed token counts only if the draw before it gave that token. Returns
// how many count. REQUIRES: the result has draws.
int TakeDraws(Sequence& sequence, int end, const SequenceResult& result, TokenEvent& event);

// Takes the scores of prompt tokens up to `end`, and gives them to the event once all are there.
void TakePromptScores(Sequence& sequence, int end, const SequenceResult& result, TokenEvent& event);

// The sequence's constraint allows no token. One that has met its limits ends the answer by length.
void EndByConstraint(Status error, TokenEvent& event);

}  // namespace diffserve
