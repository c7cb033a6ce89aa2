// SPDX-License-Identifier: Apache-2.0
// StartOrder: the simulation's ninth invariant, the order in which sequences start.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "engine/policy/scheduler.h"

namespace diffserve::testing {

class StartOrder {
 public:
  // Call before a turn.
  void Begin(const Scheduler& scheduler) {
    ran_.clear();
    levels_.clear();
    for (const auto& sequence : scheduler.running()) ran_.insert(sequence->request.id);
    for (const Sequence* sequence : scheduler.queue().ByArrival())
      levels_[sequence->request.id] = sequence->level;
  }

  // Call after its Plan. `deferred`: a client was passed over.
  std::string ViolationOf(const Scheduler& scheduler, bool deferred) {
    for (const auto& started : scheduler.running()) {
      if (ran_.contains(started->request.id)) continue;
      for (const Sequence* waits : scheduler.queue().ByArrival()) {
        if (ran_.contains(waits->request.id)) continue;  // preempted in this turn
        std::string violation = ViolationOf(*started, *waits, deferred);
        if (!violation.empty()) return violation;
      }
    }
    return {};
  }

  // How often a sequence started before an earlier arrival of its client.
  uint64_t overtaken() const { return overtaken_; }

 private:
  // Levels only fall, so a waiting sequence was at least as urgent at the other's start as before
  // the turn.
  std::string ViolationOf(const Sequence& started, const Sequence& waits, bool deferred) {
    const auto before = levels_.find(waits.request.id);
    const int64_t level = before == levels_.end() ? waits.request.priority : before->second;
    const bool is_passed_over = deferred || waits.client->tokens_left <= 0;
    if (level < started.level && !is_passed_over)
      return "9: no sequence starts before a more urgent one";
    if (waits.client != started.client) return {};
    const bool came_first = waits.arrival < started.arrival;
    if (level < started.level || (level == started.level && came_first))
      return "9: of a client the more urgent starts first, then the one that came first";
    overtaken_ += came_first ? 1 : 0;
    return {};
  }

  std::set<RequestId> ran_;
  std::map<RequestId, int64_t> levels_;  // levels of the sequences that waited
  uint64_t overtaken_ = 0;
};

}  // namespace diffserve::testing
