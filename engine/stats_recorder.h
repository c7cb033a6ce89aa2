// StatsRecorder: keeps EngineStats up to date, and the times of each request that its histograms
// need. Used by the engine thread alone; it reads no clock itself.
#pragma once

#include <chrono>
#include <optional>
#include <unordered_map>

#include "engine/scheduler.h"
#include "engine/stats.h"
#include "engine/step_cost.h"

namespace diffserve {

// A launched step: how large it is, and the ends of its phases.
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
  // Steps come in their order. One that was launched behind another is executed from when that one
  // was.
  void OnStep(const StepRecord& step);
  void ReadGauges(const Scheduler& scheduler);

  const EngineStats& stats() const { return stats_; }
  const std::optional<StepCost>& step_cost() const { return step_cost_.cost(); }
  // Of requests that began to run and have ended lately.
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
