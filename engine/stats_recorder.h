// StatsRecorder: keeps EngineStats up to date, and the times of each request that its histograms
// need. Used by the engine thread alone; it reads no clock itself.
#pragma once

#include <chrono>
#include <unordered_map>

#include "engine/scheduler.h"
#include "engine/stats.h"
#include "engine/step_plan.h"

namespace diffserve {

class StatsRecorder {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void OnAdd(const Request& request);
  void OnPlan(const StepPlan& plan, TimePoint now);
  void OnEvent(const TokenEvent& event, TimePoint now);
  // The ends of a step's phases.
  struct StepTimes {
    TimePoint begin, planned, executed, committed;
  };
  // Steps come in their order. One that was launched behind another is executed from when that one
  // was.
  void OnStep(const StepPlan& plan, const StepTimes& times);
  void ReadGauges(const Scheduler& scheduler);

  // Whether the request was part of a plan: the executor knows of it.
  bool HasStarted(RequestId request) const;
  const EngineStats& stats() const { return stats_; }

 private:
  struct Times {
    TimePoint arrival, started, first_token, last_token;
    bool has_started = false;
    int prompt_tokens = 0;
    int generated = 0;
  };
  void OnEnd(const TokenEvent& event, const Times& times, TimePoint now);

  std::unordered_map<RequestId, Times> times_;
  TimePoint last_executed_;
  EngineStats stats_;
};

}  // namespace diffserve
