// SPDX-License-Identifier: Apache-2.0
// PackPlannedDraw: the sampling task of a planned sequence's draw. The draft model guesses with the
// same task as the model draws with, so that also its sampled guesses are often right.
#pragma once

#include <span>
#include <vector>

#include "engine/policy/step_plan.h"
#include "kernels/ops/sample.h"

namespace diffserve {

// For the token at `position`. `proposed`: the tokens before it that are not known to be right,
// from the first that is planned after the known ones. Penalties count them as well, since the draw
// is discarded if one of them is wrong. Appends the task's adjustments to `adjustments`.
SampleTask PackPlannedDraw(const PlannedSequence& planned, std::span<const int32_t> proposed,
                           int vocab_size, std::vector<LogitAdjustment>* adjustments);

}  // namespace diffserve
