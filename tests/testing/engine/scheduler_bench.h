// SPDX-License-Identifier: Apache-2.0
// SchedulerBench: a Scheduler with a FakeExecutor, for tests that run it step by step.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"

namespace diffserve::testing {

class SchedulerBench {
 public:
  explicit SchedulerBench(const EngineOptions& options, FakeExecutor::Options fake = {})
      : owned_(std::make_unique<Scheduler>(options)), executor_(options, std::move(fake)) {}

  void Add(Request request) { scheduler.Add(std::move(request)); }
  // Runs one step; returns the tokens that each sequence computed.
  std::map<RequestId, int> Step() {
    const StepPlan step = scheduler.Plan(costs);
    plan = CopyOf(step);
    executor_.Launch(step);
    for (TokenEvent& event : scheduler.Commit(executor_.Collect())) {
      auto& tokens = outputs[event.request];
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      if (event.finish != FinishReason::kNone) ends.emplace(event.request, event);
      events.push_back(std::move(event));
    }
    scheduler.CheckInvariants();
    std::map<RequestId, int> computed;
    for (const PlannedCopy& planned : plan) computed[planned.id] = planned.num_planned;
    return computed;
  }
  void RunToEnd() {
    while (scheduler.HasWork()) Step();
  }

 private:
  std::unique_ptr<Scheduler> owned_;  // stays at its address when this object moves

 public:
  Scheduler& scheduler = *owned_;
  StepCosts costs;
  std::vector<PlannedCopy> plan;  // of the last step
  std::vector<TokenEvent> events;
  std::map<RequestId, TokenEvent> ends;
  std::map<RequestId, std::vector<int32_t>> outputs;

 private:
  FakeExecutor executor_;
};

}  // namespace diffserve::testing
