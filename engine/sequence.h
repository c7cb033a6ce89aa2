// Sequence: one request on its way through the engine. It has counters, not phases: each step
// computes tokens [num_computed, num_computed + num_planned). A prefix hit is num_computed > 0 on
// arrival, a chunk is num_planned < num_remaining(), a decode is num_remaining() == 1, a preemption
// is num_computed = 0. Owned by the Scheduler; no clock, no device.
//
// Tokens may be proposed behind the last one: the step that computes them draws what follows each,
// and Commit keeps as many as are right, which lowers num_computed again.
//
// Invariants: num_committed <= num_computed; num_computed + num_planned <= num_tokens() (in
// the plan under construction: and proposed.size()); pages.size() == ceil((num_computed +
// num_planned) / page_size); num_indexed_pages * page_size <= num_committed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/proposer.h"
#include "engine/request.h"

namespace diffserve {

struct Client;

// Stands for a token that the host does not know yet: the one that the step launched just before
// draws for the same sequence. It is then the only planned token.
inline constexpr int32_t kDrawnByStepBefore = -1;

// Tokens whose K and V this request can ever need: the last token drawn is never computed.
inline int64_t MaxCachedTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt.size()) +
         (request.max_tokens > 0 ? request.max_tokens - 1 : 0);
}

// What a running sequence holds of the StateStore.
struct HeldState {
  struct Pending {  // a snapshot of a step that is not committed
    int position = 0;
    int32_t slot = 0;
    uint64_t id = 0;
  };
  int32_t slot = -1;                  // its own
  int32_t from = -1;                  // where its state is: there, or in a snapshot's slot
  std::vector<int32_t> window_pages;  // its page table for layers with a window, if those have page
                                      // ids of their own; -1: no window of its next tokens sees it
  int first_window_page = 0;          // the first that is not -1
  int last_snapshot = 0;              // position
  std::vector<Pending> pending;       // ascending
};

struct Sequence {
  Sequence(Request request_in, int page_size)
      : request(std::move(request_in)),
        prompt_pages_end(num_prompt_tokens() / page_size * page_size),
        tail(request.prompt.begin() + prompt_pages_end, request.prompt.end()) {}

  const Request request;
  int64_t level = request.priority;  // what waiting has made of it; the waiting line says how
  int times_passed = 0;              // by more urgent ones, since it came to this level
  uint64_t arrival = 0;              // the scheduler's count of arrivals
  Client* client = nullptr;          // whose it is
  const int prompt_pages_end;        // tokens in the prompt's full pages
  std::vector<int32_t> tail;  // the tokens after those: the rest of the prompt, then what was
                              // drawn; kDrawnByStepBefore for each draw that is not committed yet
  int num_computed = 0;       // by the plans made so far
  int num_committed = 0;      // by those of them that are committed
  int num_planned = 0;        // by the plan under construction
  int share = 0;              // tokens that it may plan at most
  uint64_t last_turn = 0;     // the last step in which it had a share
  std::vector<int32_t> pages;
  HeldState state;            // while it runs
  int num_indexed_pages = 0;  // leading pages that this sequence found in or put into the prefix
                              // index
  std::vector<uint64_t> page_hashes;  // chain hash of leading full pages of its tokens, as far as
                                      // they were needed
  int preemptions = 0;
  int cached_tokens = 0;  // prompt tokens taken from the prefix cache at first admission
  bool admitted_before = false;
  bool started = false;  // was part of a plan
  std::optional<Proposer> proposer;
  std::vector<int32_t> proposed;  // what the step under way computes behind the last token
  std::vector<SampleResult> prompt_scores;
  bool prompt_scored = false;  // prompt_scores are complete and were sent

  int num_tokens() const { return prompt_pages_end + static_cast<int>(tail.size()); }
  int num_prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  int num_outputs() const { return num_tokens() - num_prompt_tokens(); }
  // 0 when all that is left is to commit the last step.
  int num_remaining() const {
    return static_cast<int>(std::min<int64_t>(num_tokens(), MaxCachedTokens(request))) -
           num_computed;
  }
  bool awaits_draw() const { return !tail.empty() && tail.back() == kDrawnByStepBefore; }
  // What may be drawn, or how likely it is, depends on the tokens generated before: they must be
  // known when a draw is planned.
  bool draws_by_outputs() const {
    return request.sampling.uses_penalties() || request.constraint != nullptr ||
           request.bad_words != nullptr;
  }
  bool wants_prompt_scores() const { return request.prompt_logprobs >= 0 && !prompt_scored; }
  // Leading tokens that the prefix cache may give. The draw needs the last token's logits, prompt
  // logprobs every token of the prompt, a mean of states too, a capture those from its first
  // position on.
  int max_tokens_from_cache() const {
    if (wants_prompt_scores() || request.pools_all_tokens) return 0;
    const int known = num_tokens() - 1;
    return request.capture == nullptr ? known : std::min(known, request.capture_from);
  }
  std::span<const int32_t> outputs() const {
    return std::span(tail).subspan(static_cast<size_t>(num_prompt_tokens() - prompt_pages_end));
  }
  // The tokens of a full page.
  std::span<const int32_t> PageTokens(int page, int page_size) const {
    const auto size = static_cast<size_t>(page_size);
    const size_t begin = static_cast<size_t>(page) * size;
    const auto prompt_end = static_cast<size_t>(prompt_pages_end);
    const std::span<const int32_t> prompt = request.prompt;
    return begin < prompt_end ? prompt.subspan(begin, size)
                              : std::span(tail).subspan(begin - prompt_end, size);
  }
};

}  // namespace diffserve
