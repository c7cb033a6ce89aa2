// SPDX-License-Identifier: Apache-2.0
// StatsRecorder: updates EngineStats and tracks the times of each request for the histograms. Used
// only by the engine thread; the caller passes all times.
#pragma once

#include <chrono>
#include <optional>
#include <unordered_map>

#include "engine/contract/stats.h"
#include "engine/policy/queue_state.h"
#include "engine/policy/row_cost.h"
#include "engine/policy/scheduler.h"
#include "engine/policy/step_cost.h"

namespace diffserve {

// A launched step: its size and the end of each phase.
struct StepRecord {
  uint64_t step = 0;
  int num_tokens = 0, num_sequences = 0;
  DraftLoad draft = {};
  double draft_seconds = 0;
  TimePoint begin = {}, planned = {}, executed = {}, committed = {};
};

class StatsRecorder {
 public:
  void OnAdd(const Request& request);
  void OnPlan(const StepPlan& plan, TimePoint now);
  // Writes the event's times.
  void OnEvent(TokenEvent& event, TimePoint now);
  // The engine was idle until now.
  void OnWake(TimePoint now) { last_executed_ = now; }
  // Call in step order. The execution time of a step that was launched while another ran begins
  // when that one finished.
  void OnStep(const StepRecord& step);
  void ReadGauges(const Scheduler& scheduler);
  // What the inbox needs to estimate waits.
  QueueState QueueOf(const Scheduler& scheduler) const;

  const EngineStats& stats() const { return stats_; }
  const std::optional<StepCost>& step_cost() const { return step_cost_.cost(); }
  // In tokens of a step; nullopt: not known.
  std::optional<RowCosts> row_costs() const;
  // In tokens of a step; nullopt: not known, or measured too long ago. A measurement that was too
  // high lets the scheduler draft nothing, so it would never be corrected.
  std::optional<DraftCost> draft_cost() const;

 private:
  struct Times {
    TimePoint arrival, started, first_token, last_token;
    int prompt_tokens = 0;
    int generated = 0;
    int max_tokens = 0;
  };
  void OnEnd(const TokenEvent& event, const Times& times, TimePoint now);

  std::unordered_map<RequestId, Times> times_;
  TimePoint last_executed_;   // or when the engine had nothing to do for the last time
  StepCostMeter step_cost_;   // without the draft model
  RowCostMeter row_cost_;     // the same
  StepCostMeter draft_cost_;  // of its passes
  int num_draft_measures_ = 0;
  uint64_t last_draft_step_ = 0;
  uint64_t priced_tokens_ = 0;  // from the second tier; the others wait for a step's cost
  // Tokens that were generated lately, and sequences that ended before their max_tokens; at first
  // half a one, because none may have been seen yet.
  double recent_tokens_ = 0, recent_stops_ = 0.5;
  double mean_max_tokens_ = 0;  // over requests that have arrived lately
  EngineStats stats_;
};

}  // namespace diffserve
