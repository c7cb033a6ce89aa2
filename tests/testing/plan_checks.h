// What holds of every plan, seen from outside: the part of the simulation's invariants that needs
// no memory of earlier steps.
#pragma once

#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "tests/testing/engine_requests.h"

namespace diffserve::testing {

// 4, 5 and 6 of simulation.h: what is wrong with the plan that the scheduler has just made, or
// nothing.
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

// The same of a launched step whose results are not there yet.
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

}  // namespace diffserve::testing
