// SPDX-License-Identifier: Apache-2.0
// Small engines, requests and copies of plans for tests of the engine.
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "engine/contract/options.h"
#include "engine/policy/step_plan.h"

namespace diffserve::testing {

inline EngineOptions SmallEngine() {
  EngineOptions options;
  options.page_size = 4;
  options.num_pages = 32;
  options.max_model_len = 128;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 16;
  return options;
}

// Prompt tokens first, first + 1, ...
inline Request MakeRequest(RequestId id, int prompt_tokens, int max_tokens, int first = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens));
  std::iota(prompt.begin(), prompt.end(), first);
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

// A copy of a planned sequence at the time of the plan.
struct PlannedCopy {
  RequestId id = 0;
  int num_computed = 0, num_planned = 0;
  int samples = 0;
  std::vector<int32_t> tokens, outputs, pages, banned_tokens;  // tokens: the proposed ones too
  bool operator==(const PlannedCopy&) const = default;
};

inline std::vector<PlannedCopy> CopyOf(const StepPlan& plan) {
  std::vector<PlannedCopy> copies;
  for (const PlannedSequence& planned : plan.sequences) {
    PlannedCopy& copy = copies.emplace_back();
    copy.id = planned.id();
    copy.num_computed = planned.num_computed;
    copy.num_planned = planned.num_planned;
    copy.samples = planned.samples;
    for (int i = planned.num_computed; i < planned.end(); ++i)
      copy.tokens.push_back(planned.TokenAt(i));
    copy.outputs.assign(planned.outputs.begin(), planned.outputs.end());
    copy.pages.assign(planned.pages.begin(), planned.pages.end());
    copy.banned_tokens = planned.banned_tokens;
  }
  return copies;
}

}  // namespace diffserve::testing
