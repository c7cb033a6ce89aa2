// StatsRecorder: keeps EngineStats up to date, and the times of each request that its histograms
// need. Used by the engine thread alone; it reads no clock itself.
#pragma once

#include <chrono>
#include <unordered_map>

#include "engine/scheduler.h"
#include "engine/stats.h"

namespace diffserve {

using TimePoint = std::chrono::steady_clock::time_point;

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

 private:
  struct Times {
    TimePoint arrival, started, first_token, last_token;
    int prompt_tokens = 0;
    int generated = 0;
  };
  void OnEnd(const TokenEvent& event, const Times& times, TimePoint now);

  std::unordered_map<RequestId, Times> times_;
  TimePoint last_executed_;
  EngineStats stats_;
};

}  // namespace diffserve
