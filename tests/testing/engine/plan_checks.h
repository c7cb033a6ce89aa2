// SPDX-License-Identifier: Apache-2.0
// Checks of single plans from outside: the simulation's invariants that need no memory of earlier
// steps.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"

namespace diffserve::testing {

// Invariants 4, 5 and 6 of simulation.h. Returns the fault of the scheduler's latest plan, or "".
inline std::string ViolationOf(const StepPlan& plan, const Scheduler& scheduler,
                               const EngineOptions& options) {
  if (plan.num_tokens() < 1 || plan.num_tokens() > options.max_num_batched_tokens)
    return "6: tokens within the limit";
  if (static_cast<int>(scheduler.running().size()) > options.max_num_seqs)
    return "6: sequences within the limit";
  for (const PlannedSequence& planned : plan.sequences) {
    if (static_cast<int64_t>(planned.pages.size()) != PagesFor(planned.end(), options.page_size))
      return "5: page table length";
    for (size_t i = planned.num_computed / options.page_size; i < planned.pages.size(); ++i) {
      if (scheduler.pool().holders(planned.pages[i]) != 1 ||
          scheduler.index().Contains(planned.pages[i]))
        return "4: a page that others see is not written";
    }
    if (planned.end() > MaxCachedTokens(*planned.request))
      return "what is certain to end is not planned";
  }
  return {};
}

// The same for a launched step without results.
inline std::string ViolationOf(const std::vector<PlannedCopy>& step, const Scheduler& scheduler,
                               const EngineOptions& options) {
  for (const PlannedCopy& planned : step) {
    for (size_t i = planned.num_computed / options.page_size; i < planned.pages.size(); ++i) {
      if (scheduler.pool().holders(planned.pages[i]) > 1 ||
          scheduler.index().Contains(planned.pages[i])) {
        return "4: a page that a launched step writes is not shared, and not in the index, even if "
               "its sequence has ended";
      }
    }
  }
  return {};
}

// The end of the longest indexed prefix within the first `max_tokens` tokens; for models with
// states, the last such end with a snapshot.
inline int EndOfPrefix(const Sequence& sequence, int max_tokens, const Scheduler& scheduler,
                       int page_size) {
  const PrefixIndex& index = scheduler.index();
  const StateStore& states = scheduler.states();
  uint64_t hash = index.RootHash(sequence.request.cache_salt);
  int32_t page = -1;
  int found = 0;
  for (int end = page_size; end <= max_tokens; end += page_size) {
    const auto tokens = sequence.PageTokens(end / page_size - 1, page_size);
    hash = index.ChainHash(hash, tokens);
    page = index.Find({page, hash, tokens, sequence.request.cache_salt});
    if (page < 0) break;
    if (states.empty() || states.HasSnapshot(page)) found = end;
  }
  return found;
}

// Invariant 10 for the sequences that start with this plan: what the index contains now was in it
// before.
inline std::string ViolationOfHits(const StepPlan& plan, const std::vector<RequestId>& ran_before,
                                   const Scheduler& scheduler, const EngineOptions& options) {
  if (!options.enable_prefix_caching) return {};
  for (const auto& sequence : scheduler.running()) {
    const RequestId id = sequence->request.id;
    const auto planned = std::ranges::find(plan.sequences, id, &PlannedSequence::id);
    if (planned == plan.sequences.end() || std::ranges::count(ran_before, id) > 0) continue;
    const int known = sequence->num_tokens() - planned->samples;
    const int max_tokens = std::min(sequence->max_tokens_from_cache(), known - 1);
    if (EndOfPrefix(*sequence, max_tokens, scheduler, options.page_size) > planned->num_computed)
      return "10: a hit ends where the last page or snapshot does";
  }
  return {};
}

}  // namespace diffserve::testing
