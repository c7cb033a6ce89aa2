// SPDX-License-Identifier: Apache-2.0
// StepPlan: the work of one step, and its result. Numbers only. A step may be planned while the
// step before it runs. A plan refers to the scheduler's sequences instead of copying them: its
// pointers and spans are valid until the next call of the Scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/policy/sequence.h"
#include "kernels/base/status.h"
#include "kernels/mamba/state_slot_use.h"

namespace diffserve {

struct PlannedSequence {
  const Request* request = nullptr;
  int num_computed = 0;     // tokens whose K and V are in the cache before this step
  int num_planned = 0;      // this step computes tokens [num_computed, num_computed + num_planned)
  bool first_step = false;  // whether this is the request's first step
  int samples = 0;  // number of draws; each of the last `samples` planned tokens has one, for the
                    // position after it. 0 if the sequence's last known token is not planned
  bool scores_prompt = false;  // return prompt logprobs for every planned token that is followed by
                               // another prompt token
  std::span<const int32_t> outputs;   // generated so far; the last one may be kDrawnByStepBefore,
                                      // but not if Sequence::draws_by_outputs()
  std::span<const int32_t> proposed;  // samples - 1 guessed tokens, planned after the last token
                                      // that is known or in flight; a guess is right if the draw
                                      // before it equals it. kGuessedByDraft: the executor lets the
                                      // draft model guess it
  std::span<const int32_t> pages;     // page table that covers num_computed + num_planned slots
  std::span<const int32_t> window_pages;  // HeldState::window_pages
  StateSlotUse states;                    // used if the model's layers keep states
  DraftWork draft;                        // in the same pages
  std::vector<int32_t> banned_tokens;     // may not be drawn: EOS and stop ids while the request is
                                          // below its min_tokens

  RequestId id() const { return request->id; }
  int end() const { return num_computed + num_planned; }
  // The sequence's token at `position`. REQUIRES: position < end().
  int32_t TokenAt(int position) const {
    const auto i = static_cast<size_t>(position);
    const SharedTokens& prompt = request->prompt;
    if (i < prompt.size()) return prompt[i];
    const size_t output = i - prompt.size();
    return output < outputs.size() ? outputs[output] : proposed[output - outputs.size()];
  }
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<PlannedSequence> sequences;
  int num_tokens() const {
    int tokens = 0;
    for (const PlannedSequence& s : sequences) tokens += s.num_planned;
    return tokens;
  }
  DraftLoad draft_load() const {
    DraftLoad load;
    for (const PlannedSequence& s : sequences) load.Add(s.draft);
    return load;
  }
};

// The result of one planned sequence.
struct SequenceResult {
  std::vector<SampleResult> samples;  // one per draw; draws after one that differs from its
                                      // proposed token are meaningless. A draw that could not be
                                      // made is not finite
  std::vector<int32_t> guesses;       // DraftWork::guesses tokens
  // If scores_prompt: entry i scores prompt token num_computed + i + 1, given the planned token
  // before it, for all planned tokens that are followed by a prompt token.
  std::vector<SampleResult> prompt_scores;
  Status error;  // the constraint's error if no token may be drawn; `samples` is then meaningless
  Status observed;              // an observer's error
  std::string non_finite_hint;  // another possible cause of a non-finite result, or empty
};
using StepResult = std::vector<SequenceResult>;  // in the plan's order

}  // namespace diffserve
