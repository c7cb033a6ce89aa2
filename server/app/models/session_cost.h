// SPDX-License-Identifier: Apache-2.0
// What a planned session costs: memory of its parts, and bytes that a decode step moves.
#pragma once

#include "server/app/commands/model_session.h"

namespace diffserve {

// Memory of the largest step: activations, the workspace of attention, and logits of the tokens
// that are sampled in it.
double StepBytes(const SessionPlan& plan);

// Weights, KV pages, states and the largest step.
double TotalBytes(const SessionPlan& plan);

// Bytes that a decode step reads and writes for a sequence with `context` tokens, without weights.
double SequenceBytes(const SessionPlan& plan, double context);

}  // namespace diffserve
