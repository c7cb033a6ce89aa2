// Sequence: one request on its way through the engine. It has counters, not phases: each step
// computes tokens [num_computed, num_computed + num_planned). A prefix hit is num_computed > 0 on
// arrival, a chunk is num_planned < num_remaining(), a decode is num_remaining() == 1, a preemption
// is num_computed = 0. Owned by the Scheduler; no clock, no device.
//
// Invariants: num_committed <= num_computed; num_computed + num_planned <= num_tokens();
// pages.size() == ceil((num_computed + num_planned) / page_size); num_indexed_pages * page_size <=
// num_committed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/step_plan.h"

namespace diffserve {

// Tokens whose K and V this request can ever need: the last token drawn is never computed.
inline int64_t MaxCachedTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt.size()) +
         (request.max_tokens > 0 ? request.max_tokens - 1 : 0);
}

struct Sequence {
  Request request;
  std::vector<int32_t> tokens;  // prompt, then what was drawn; kDrawnByStepBefore for each draw
                                // that is not committed yet
  int num_computed = 0;         // by the plans made so far
  int num_committed = 0;        // by those of them that are committed
  int num_planned = 0;          // by the plan under construction
  std::vector<int32_t> pages;
  int num_indexed_pages = 0;  // leading pages that this sequence found in or put into the prefix
                              // index
  std::vector<uint64_t> page_hashes;  // chain hash of leading full pages of `tokens`, as far as
                                      // they were needed
  int preemptions = 0;
  int cached_tokens = 0;  // prompt tokens taken from the prefix cache at first admission
  bool admitted_before = false;
  bool started = false;  // was part of a plan
  std::vector<SampleResult> prompt_scores;
  bool prompt_scored = false;  // prompt_scores are complete and were sent

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  int num_outputs() const { return num_tokens() - num_prompt_tokens(); }
  // 0 when all that is left is to commit the last step.
  int num_remaining() const {
    return static_cast<int>(std::min<int64_t>(num_tokens(), MaxCachedTokens(request))) -
           num_computed;
  }
  bool awaits_draw() const { return tokens.back() == kDrawnByStepBefore; }
  // Prompt logprobs need every row of the prompt to be computed, so such a sequence takes nothing
  // from the prefix cache.
  bool wants_prompt_scores() const { return request.prompt_logprobs >= 0 && !prompt_scored; }
  std::span<const int32_t> output_tokens() const {
    return std::span(tokens).subspan(request.prompt.size());
  }
};

inline int64_t PagesFor(int64_t tokens, int page_size) {
  return (tokens + page_size - 1) / page_size;
}

}  // namespace diffserve
