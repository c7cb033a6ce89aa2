// StepPlan: what one step computes, and what came of it. Numbers only. A step may be planned while
// the one before it still runs. A plan looks into the scheduler's sequences instead of copying
// them: its pointers and spans are valid until the next call of the Scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "kernels/base/status.h"
#include "kernels/mamba/state_slot_use.h"

namespace diffserve {

struct PlannedSequence {
  const Request* request = nullptr;
  int num_computed = 0;  // tokens whose K and V are in the cache before this step
  int num_planned = 0;   // tokens [num_computed, num_computed + num_planned) are computed in this
                         // step
  bool first_step = false;  // of this request
  int samples = 0;  // draws, each behind one of the last so many planned tokens, for the position
                    // after it; 0 where the sequence's last known token is not planned
  bool scores_prompt = false;  // prompt logprobs are wanted of every planned token that another
                               // prompt token follows
  std::span<const int32_t> outputs;   // generated so far; the last one may be kDrawnByStepBefore,
                                      // but not if Sequence::draws_by_outputs()
  std::span<const int32_t> proposed;  // planned behind the last token that is known or under way:
                                      // samples - 1 tokens that may be what is drawn before them
  std::span<const int32_t> pages;     // page table covering num_computed + num_planned slots
  std::span<const int32_t> window_pages;  // HeldState's
  StateSlotUse states;                    // where the model's layers have states
  std::vector<int32_t> banned_tokens;     // not to be drawn: EOS and stop ids while the request is
                                          // below its min_tokens

  RequestId id() const { return request->id; }
  int end() const { return num_computed + num_planned; }
  // Of the sequence's tokens the one at `position`, below end().
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
};

// What came of one planned sequence.
struct SequenceResult {
  std::vector<SampleResult> samples;  // one for each draw; those behind a draw that differs from
                                      // the token proposed for it mean nothing, and one that could
                                      // not be made there is not finite
  // If scores_prompt: entry i scores prompt token num_computed + i + 1 by the planned token before
  // it, for all planned tokens that a prompt token follows.
  std::vector<SampleResult> prompt_scores;
  Status error;   // why no token may be drawn, as a constraint says; `samples` mean nothing then
  Status states;  // of the hidden states that its request pools, once they are complete
  std::string non_finite_hint;  // what else may be the reason of one that is not finite, or empty
};
using StepResult = std::vector<SequenceResult>;  // in the plan's order

}  // namespace diffserve
