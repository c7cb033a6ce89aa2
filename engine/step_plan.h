// StepPlan: what one step computes. Numbers only. A step may be planned while the one before it
// still runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request.h"

namespace diffserve {

// Stands for a token that the host does not know yet: the one that the step launched just before
// draws for the same sequence. It is then the only planned token.
inline constexpr int32_t kDrawnByStepBefore = -1;

struct PlannedSequence {
  RequestId request = 0;
  int num_computed = 0;  // tokens whose K and V are in the cache before this step
  int num_planned = 0;   // tokens [num_computed, num_computed + num_planned) are computed in this
                         // step
  bool first_step = false;  // the first one of this request: the engine calls Executor::Begin
                            // before it
  bool samples = false;  // the last planned token is the sequence's last token: draw the next one,
                         // whose position is num_computed + num_planned
  bool scores_prompt = false;  // prompt logprobs are wanted of every row in this step that predicts
                               // a prompt token
  std::vector<int32_t> tokens;  // the planned tokens, [num_planned]; or one kDrawnByStepBefore
  std::vector<int32_t> pages;   // page table covering num_computed + num_planned slots
  // For the draw; both are empty unless `samples`.
  std::vector<int32_t> output_tokens;  // generated so far; only if the request has a presence,
                                       // frequency or repetition penalty
  std::vector<int32_t> banned_tokens;  // EOS and stop ids while the request is below its min_tokens
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<PlannedSequence> sequences;
  int num_rows() const {
    int rows = 0;
    for (const PlannedSequence& s : sequences) rows += s.num_planned;
    return rows;
  }
};

// What came of it, in the plan's order.
struct SequenceResult {
  RequestId request = 0;
  bool sampled = false;
  SampleResult sample;  // if sampled
  // If scores_prompt: entry i belongs to the row at position num_computed + i and scores prompt
  // token num_computed + i + 1, for all planned positions that have such a token.
  std::vector<SampleResult> prompt_scores;
  std::string non_finite_hint;  // what else may be the reason of one that is not finite, or empty
};

struct StepResult {
  std::vector<SequenceResult> sequences;
};

}  // namespace diffserve
