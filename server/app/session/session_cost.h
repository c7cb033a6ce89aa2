// SPDX-License-Identifier: Apache-2.0
// What a planned session costs: memory of its parts, and bytes that a decode step moves.
#pragma once

#include "server/app/session/model_session.h"

namespace diffserve {

// Memory of the largest step: activations, the workspace of attention, and logits of the tokens
// that are sampled in it.
double StepBytes(const SessionPlan& plan);

// Weights, KV pages, states and the largest step.
double TotalBytes(const SessionPlan& plan);

// Bytes that a decode step reads and writes for a sequence with `context` tokens, without weights.
double SequenceBytes(const SessionPlan& plan, double context);

// FLOPs from the shapes: two per multiply-add, without convolutions and scans.
struct Flops {
  double linear = 0;     // per token, without the output matrix
  double attention = 0;  // per token and seen token, in layers without a window
};

struct StepFlops {
  explicit StepFlops(const ModelConfig& config);

  Flops all_tokens;     // per token: up to K and V of the last layer that has any
  Flops wanted_tokens;  // per token with logits: the layers after, and the output matrix
};

// In millions or billions: "0.87 M", "1.04 B".
std::string ParametersText(int64_t parameters);

}  // namespace diffserve
