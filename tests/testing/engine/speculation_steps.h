// SPDX-License-Identifier: Apache-2.0
// SpeculationSteps: a scheduler over any executor of depth 1, step by step, and requests of all
// kinds. For tests that compare answers with and without proposed tokens.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/executor.h"
#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_constraint.h"

namespace diffserve::testing {

// The result of a request; equal only if every bit is.
struct SpeculationAnswer {
  std::vector<int32_t> tokens;
  std::vector<std::vector<std::pair<int32_t, float>>> logprobs;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;
  std::string error;
  bool operator==(const SpeculationAnswer&) const = default;
};

// Steps of a scheduler over any executor of depth 1.
class SpeculationSteps {
 public:
  SpeculationSteps(const EngineOptions& options, std::unique_ptr<Executor> executor)
      : owned_(std::make_unique<Scheduler>(options)), executor_(std::move(executor)) {}

  void Step() {
    const StepPlan step = scheduler.Plan(costs);
    plan = CopyOf(step);
    scheduler.CheckInvariants();
    executor_->Launch(step);
    events = scheduler.Commit(executor_->Collect());
    scheduler.CheckInvariants();
    for (const auto& sequence : scheduler.running()) {
      EXPECT_EQ(sequence->num_computed, sequence->num_committed) << "nothing is left unverified";
      EXPECT_LT(sequence->num_computed, sequence->num_tokens());
    }
    for (const TokenEvent& event : events) {
      SpeculationAnswer& answer = answers[event.request];
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
      for (const SampleResult& sample : event.logprobs) {
        auto& all = answer.logprobs.emplace_back();
        all.emplace_back(sample.token, sample.logprob);
        for (const TokenLogprob& top : sample.top_logprobs)
          all.emplace_back(top.token, top.logprob);
      }
      answer.finish = event.finish;
      answer.stop_token = event.stop_token;
      answer.error = event.error.message();
    }
  }
  void RunToEnd() {
    while (scheduler.HasWork()) Step();
  }

 private:
  std::unique_ptr<Scheduler> owned_;  // stays at its address when this object moves

 public:
  Scheduler& scheduler = *owned_;
  StepCosts costs;
  std::vector<PlannedCopy> plan;   // of the last step
  std::vector<TokenEvent> events;  // likewise
  std::map<RequestId, SpeculationAnswer> answers;

 private:
  std::unique_ptr<Executor> executor_;
};

inline std::vector<Request> AllKindsOfRequests() {
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 12; ++id) {
    Request request;
    request.id = id;
    std::vector<int32_t> prompt;
    for (RequestId i = 0; i < 18 + 4 * id; ++i)
      prompt.push_back(static_cast<int32_t>((i % (5 + id) * 7 + 20) % 100));
    request.prompt = prompt;
    request.max_tokens = 90;
    request.sampling.temperature = id % 3 == 0 ? 0.3f : 0.0f;
    request.sampling.seed = 3;
    request.sequence = id % 2;  // a second continuation of the prompt before
    if (id % 2 == 0) request.prompt = requests.back().prompt;
    if (id % 3 == 1) request.sampling.num_logprobs = 2;
    if (id % 4 == 1) request.sampling.presence_penalty = 0.02f;
    if (id % 5 == 1) request.sampling.repetition_penalty = 1.01f;
    if (id % 5 == 3) request.sampling.frequency_penalty = 0.01f;
    if (id % 4 == 2) request.sampling.logit_bias = {{30, -2.0f}, {41, 0.5f}};
    if (id % 6 == 4) request.sampling.prompt_logprobs = 1;
    if (id % 5 == 0) request.sampling.min_tokens = 20;
    request.eos_token_ids = {2};
    requests.push_back(std::move(request));
  }
  return requests;
}

// Two of three requests are constrained, by different constraints.
inline std::vector<Request> ConstrainedRequests() {
  std::vector<Request> requests = AllKindsOfRequests();
  for (Request& request : requests) {
    if (request.id % 3 == 2) continue;
    request.constraint = std::make_shared<FakeConstraint>(FakeConstraint::Options{
        .seed = request.id,
        .vocab_size = 128,
        .one_of = request.id % 4 == 0 ? 1 : 4,
        .ends = request.id == 10 ? std::vector<int32_t>() : request.eos_token_ids,
        .ends_after = request.id == 7 ? 20 : -1,
        .fill_fails_after = request.id == 10 ? 30 : -1,
        .forgets = request.id % 2 == 0});
    if (request.id == 4) {
      request.allowed_tokens = std::make_shared<const std::vector<uint32_t>>(
          std::vector<uint32_t>{0xffff0fff, 0xf0ffffff, 0xfffffff0, 0x7fffffff});
    }
    if (request.id == 6) {
      request.bad_words = std::make_shared<const std::vector<std::vector<int32_t>>>(
          std::vector<std::vector<int32_t>>{{41}, {30, 30}, {50, 51, 52}});
    }
  }
  return requests;
}

}  // namespace diffserve::testing
