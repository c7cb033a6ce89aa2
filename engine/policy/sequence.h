// SPDX-License-Identifier: Apache-2.0
// Sequence: one request on its way through the engine. It has counters instead of phases: each step
// computes tokens [num_computed, num_computed + num_planned). Prefix hit: num_computed > 0 on
// arrival. Chunk: num_planned < num_remaining(). Decode: num_remaining() == 1. Preemption:
// num_computed = 0. Owned by the Scheduler; no clock, no device. Each field has one part of the
// policy that writes it, by which the fields are grouped.
//
// Tokens may be proposed after the last one. The step that computes them draws what follows each of
// them, and Commit keeps those that were right, which lowers num_computed again.
//
// Invariants:
// - num_committed <= num_computed
// - num_computed + num_planned <= num_tokens(), plus proposed.size() in the plan being built
// - pages.size() == ceil((num_computed + num_planned) / page_size)
// - num_indexed_pages * page_size <= num_committed
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/contract/page_tier.h"
#include "engine/contract/request.h"
#include "engine/policy/draft_record.h"
#include "engine/policy/draft_work.h"
#include "engine/policy/proposer.h"

namespace diffserve {

struct ClientQueue;

// Placeholder for a token that the host does not know yet: the step launched just before draws it
// for the same sequence. It is then the only planned token.
inline constexpr int32_t kDrawnByStepBefore = -1;

// How many tokens' K and V this request can ever need. The last drawn token is never computed.
inline int64_t MaxCachedTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt.size()) +
         (request.max_tokens > 0 ? request.max_tokens - 1 : 0);
}

// The slots and window pages of the StateStore that a running sequence holds.
struct HeldState {
  struct Pending {  // a snapshot taken by a step that is not committed
    int position = 0;
    int32_t slot = 0;
    uint64_t id = 0;
  };
  int32_t slot = -1;                  // its own slot
  int32_t from = -1;                  // the slot that contains its state: its own, or a snapshot's
  std::vector<int32_t> window_pages;  // its page table for layers with a window, if those have
                                      // their own page ids; -1: outside the windows of its next
                                      // tokens
  int first_window_page = 0;          // index of the first window page that is not -1
  int last_snapshot = 0;              // position
  std::vector<Pending> pending;       // ascending
  // Slots for the states that a wrong proposal goes back to: [i] is the state before proposed token
  // i of the step in flight.
  std::vector<int32_t> row_slots;
};

struct Sequence {
  static constexpr int kUnlimited = std::numeric_limits<int>::max();

  Sequence(Request request_in, int page_size)
      : request(std::move(request_in)),
        prompt_pages_end(num_prompt_tokens() / page_size * page_size),
        tail(request.prompt.begin() + prompt_pages_end, request.prompt.end()) {}

  // --- Scheduler ---
  const Request request;
  const int prompt_pages_end;  // number of tokens in the prompt's full pages
  std::vector<int32_t> tail;  // the tokens after prompt_pages_end: the rest of the prompt, then the
                              // drawn tokens; kDrawnByStepBefore for each draw that is not
                              // committed yet
  int preemptions = 0;
  int cached_tokens = 0;  // prompt tokens taken from the prefix cache at first admission
  int loaded_tokens = 0;  // of these, from the second tier
  bool admitted_before = false;
  bool started = false;  // was part of a plan
  std::vector<SampleResult> prompt_scores;
  bool prompt_scored = false;  // prompt_scores are complete and were sent

  // --- WaitingQueue ---
  int64_t level = request.priority;  // effective priority after waiting; see waiting_queue.h
  int times_passed = 0;              // how often more urgent sequences started first since it
                                     // reached this level
  uint64_t arrival = 0;              // its position in the order of arrival
  ClientQueue* client = nullptr;     // the client that it belongs to

  // --- ClientShares ---
  int share = 0;           // maximum number of tokens in the plan being built, or kUnlimited
  uint64_t last_turn = 0;  // the last step in which its share was not 0

  // --- SequencePages, with the Scheduler's commits and preemptions ---
  int num_computed = 0;   // tokens computed by all plans so far
  int num_committed = 0;  // tokens computed by committed plans
  int num_planned = 0;    // tokens in the plan being built
  std::vector<int32_t> pages;
  HeldState state;            // only while it runs
  int num_indexed_pages = 0;  // leading pages that it found in the prefix index or added to it
  std::vector<uint64_t> page_hashes;  // chain hashes of its leading full pages, computed on demand
  int num_drafted_pages = 0;  // leading pages whose slots are all drafted; see draft_pages.h

  // --- TierTransfers ---
  std::vector<TierKey> tier_keys;        // of its leading full pages, computed on demand
  bool asked_tier = false;               // since it last waited
  int loaded_begin = 0, loaded_end = 0;  // tokens that its last load brought

  // --- ProposalPlanner ---
  std::optional<Proposer> proposer;
  std::vector<int32_t> proposed;  // tokens that the step in flight computes after the last token
  GuessSource proposed_from = GuessSource::kPrompt;
  DraftWork draft;  // in the plan being built
  DraftRecord draft_record;
  PredictionUse prediction_use;

  int num_tokens() const { return prompt_pages_end + static_cast<int>(tail.size()); }
  int num_prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  int num_outputs() const { return num_tokens() - num_prompt_tokens(); }
  // 0 when only the last step's commit is left.
  int num_remaining() const {
    return static_cast<int>(std::min<int64_t>(num_tokens(), MaxCachedTokens(request))) -
           num_computed;
  }
  bool awaits_draw() const { return !tail.empty() && tail.back() == kDrawnByStepBefore; }
  // Whether the next draw depends on the generated tokens (allowed tokens or probabilities). Those
  // tokens must then be known when the draw is planned.
  bool draws_by_outputs() const {
    return request.sampling.uses_penalties() || request.constraint != nullptr ||
           request.bad_words != nullptr;
  }
  bool wants_prompt_scores() const {
    return request.sampling.prompt_logprobs >= 0 && !prompt_scored;
  }
  // How many leading tokens may come from the prefix cache. The draw needs the logits of the last
  // token, prompt logprobs need those of every prompt token.
  int max_tokens_from_cache() const {
    return wants_prompt_scores() ? 0 : std::min(num_tokens() - 1, request.observed_from);
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
