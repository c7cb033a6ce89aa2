// SPDX-License-Identifier: Apache-2.0
// StatsRecorder: updates EngineStats and tracks the times of each request for the histograms. Used
// only by the engine thread; the caller passes all times.
#pragma once

#include <chrono>
#include <optional>
#include <unordered_map>

#include "engine/scheduler.h"
#include "engine/stats.h"
#include "engine/step_cost.h"

namespace diffserve {

// A launched step: its size and the end of each phase.
struct StepRecord {
  uint64_t step = 0;
  int num_tokens = 0, num_sequences = 0;
  TimePoint begin, planned, executed, committed;
};

class StatsRecorder {
 public:
  void OnAdd(const Request& request);
  void OnPlan(const StepPlan& plan, TimePoint now);
  void OnEvent(const TokenEvent& event, TimePoint now);
  // Call in step order. The execution time of a step that was launched while another ran begins
  // when that one finished.
  void OnStep(const StepRecord& step);
  void ReadGauges(const Scheduler& scheduler);

  const EngineStats& stats() const { return stats_; }
  const std::optional<StepCost>& step_cost() const { return step_cost_.cost(); }
  // Average over started requests that have ended lately.
  double mean_generated_tokens() const { return mean_generated_tokens_; }

 private:
  struct Times {
    TimePoint arrival, started, first_token, last_token;
    int prompt_tokens = 0;
    int generated = 0;
  };
  void OnEnd(const TokenEvent& event, const Times& times, TimePoint now);

  std::unordered_map<RequestId, Times> times_;
  TimePoint last_executed_;
  StepCostMeter step_cost_;
  double mean_generated_tokens_ = 0;
  EngineStats stats_;
};

}  // namespace diffserve
