// SPDX-License-Identifier: Apache-2.0
// Speculation: the Scheduler with proposed tokens, and a model's output, which must keep the same
// bits.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/engine_requests.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/fake_executor.h"
#include "tests/testing/golden_case.h"

namespace diffserve {
namespace {

using testing::FakeExecutor;
using testing::PlannedCopy;
using Tokens = std::vector<int32_t>;

// The result of a request; equal only if every bit is.
struct Answer {
  Tokens tokens;
  std::vector<std::vector<std::pair<int32_t, float>>> logprobs;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;
  std::string error;
  bool operator==(const Answer&) const = default;
};

// Steps of a scheduler over any executor of depth 1.
class Steps {
 public:
  Steps(const EngineOptions& options, std::unique_ptr<Executor> executor)
      : scheduler(options), executor_(std::move(executor)) {}

  void Step() {
    const StepPlan step = scheduler.Plan();
    plan = testing::CopyOf(step);
    scheduler.CheckInvariants();
    executor_->Launch(step);
    events = scheduler.Commit(executor_->Collect());
    scheduler.CheckInvariants();
    for (const auto& sequence : scheduler.running()) {
      EXPECT_EQ(sequence->num_computed, sequence->num_committed) << "nothing is left unverified";
      EXPECT_LT(sequence->num_computed, sequence->num_tokens());
    }
    for (const TokenEvent& event : events) {
      Answer& answer = answers[event.request];
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

  Scheduler scheduler;
  std::vector<PlannedCopy> plan;   // of the last step
  std::vector<TokenEvent> events;  // likewise
  std::map<RequestId, Answer> answers;

 private:
  std::unique_ptr<Executor> executor_;
};

Steps FakeSteps(const EngineOptions& options, FakeExecutor::Options fake = {}) {
  return Steps(options, std::make_unique<FakeExecutor>(options, std::move(fake)));
}

EngineOptions Speculating(int tokens) {
  EngineOptions options = testing::SmallEngine();
  options.num_pages = 64;
  options.speculative_tokens = tokens;
  return options;
}

// A request whose prompt repeats the tokens in the order in which FakeExecutor usually draws them.
Request RepeatingRequest(RequestId id, int max_tokens) {
  Tokens prompt(10);
  for (size_t i = 1; i < prompt.size(); ++i) prompt[i] = (prompt[i - 1] * 5 + 7) % 256;
  prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 4);
  Request request = testing::MakeRequest(id, 1, max_tokens);
  request.prompt = prompt;
  request.sampling.seed = id;
  return request;
}

TEST(SpeculationTest, StepComputesProposedTokensAndKeepsRightOnes) {
  Steps steps = FakeSteps(Speculating(4));
  const Request request = RepeatingRequest(1, 30);
  const Tokens expected = FakeExecutor::Continue(request);
  ASSERT_EQ(Tokens(expected.begin(), expected.begin() + 5), (Tokens{68, 91, 206, 13, 72}));
  steps.scheduler.SetOverheadTokens(20);
  steps.scheduler.Add(request);
  steps.Step();
  steps.Step();
  EXPECT_EQ(steps.plan.at(0).tokens, (Tokens{68, 91, 206, 13, 72}));
  EXPECT_EQ(steps.plan.at(0).samples, 5);
  EXPECT_EQ(steps.plan.at(0).num_computed, 14);
  EXPECT_EQ(steps.plan.at(0).pages.size(), 5u);
  EXPECT_EQ(steps.events.at(0).tokens, Tokens(expected.begin() + 1, expected.begin() + 6));
  steps.RunToEnd();
  EXPECT_EQ(steps.answers.at(1).tokens, expected);
  const SchedulerCounters& counters = steps.scheduler.counters();
  EXPECT_GE(counters.accepted_tokens.total(), 4u);
  EXPECT_LT(counters.accepted_tokens.total(), counters.proposed_tokens.total());
  EXPECT_LE(counters.proposals, counters.proposed_tokens.total());
}

TEST(SpeculationTest, PredictionIsProposedFromTheFirstTokenOn) {
  Steps steps = FakeSteps(Speculating(7));
  Request request = testing::MakeRequest(1, 5, 12);
  const Tokens expected = FakeExecutor::Continue(request);
  Tokens prediction = expected;
  prediction[9] = (prediction[9] + 1) % 256;
  request.prediction = prediction;
  steps.scheduler.SetOverheadTokens(100);
  steps.scheduler.Add(request);
  steps.RunToEnd();
  EXPECT_EQ(steps.answers.at(1).tokens, expected);
  EXPECT_EQ(steps.events.at(0).prediction.accepted, 7) << "tokens 1 to 7; 0 and 8 were draws";
  EXPECT_GE(steps.events.at(0).prediction.rejected, 1);
  const SchedulerCounters& counters = steps.scheduler.counters();
  EXPECT_EQ(counters.accepted_tokens.by_source, (std::array<uint64_t, 6>{0, 7, 0, 0, 0, 0}));
}

TEST(SpeculationTest, ForcedTokensAreProposedAndVerified) {
  Steps steps = FakeSteps(Speculating(7));
  Request request = testing::MakeRequest(1, 5, 60);
  // One token is allowed at a time, and the text repeats nothing.
  request.constraint = std::make_shared<testing::FakeConstraint>(
      testing::FakeConstraint::Options{.seed = 4, .one_of = 1 << 30});
  const Tokens expected = FakeExecutor::Continue(request);
  steps.scheduler.SetOverheadTokens(100);
  steps.scheduler.Add(request);
  steps.RunToEnd();
  EXPECT_EQ(steps.answers.at(1).tokens, expected);
  const SchedulerCounters& counters = steps.scheduler.counters();
  const size_t grammar = static_cast<size_t>(GuessSource::kGrammar);
  EXPECT_GT(counters.accepted_tokens.by_source[grammar], 30u);
  EXPECT_LT(counters.accepted_tokens.by_source[grammar],
            counters.proposed_tokens.by_source[grammar])
      << "some are spelled wrongly";
}

TEST(SpeculationTest, NothingIsComputedBeyondMaxTokens) {
  for (int max_tokens = 1; max_tokens < 12; ++max_tokens) {
    Steps steps = FakeSteps(Speculating(8));
    const Request request = RepeatingRequest(1, max_tokens);
    steps.scheduler.Add(request);
    while (steps.scheduler.HasWork()) {
      steps.Step();
      EXPECT_LE(steps.plan.at(0).num_computed + steps.plan.at(0).num_planned,
                MaxCachedTokens(request));
    }
    EXPECT_EQ(steps.answers.at(1).tokens, FakeExecutor::Continue(request));
    EXPECT_EQ(steps.answers.at(1).finish, FinishReason::kLength);
  }
}

TEST(SpeculationTest, StopTokenEndsTheSequenceAtAnyDraw) {
  const Tokens all = FakeExecutor::Continue(RepeatingRequest(1, 30));
  for (size_t last = 0; last < 6; ++last) {
    Request request = RepeatingRequest(1, 30);
    request.sampling.stop_token_ids = {all[last]};
    Steps steps = FakeSteps(Speculating(8));
    steps.scheduler.Add(request);
    steps.RunToEnd();
    EXPECT_EQ(steps.answers.at(1).tokens, FakeExecutor::Continue(request));
    EXPECT_EQ(steps.answers.at(1).stop_token, all[last]);
    EXPECT_EQ(steps.scheduler.pool().num_in_use(), 0);
  }
}

TEST(SpeculationTest, TokensBannedUntilMinTokensAreAllowedInLaterDraws) {
  const Tokens all = FakeExecutor::Continue(RepeatingRequest(1, 30));
  for (int min_tokens = 0; min_tokens < 9; ++min_tokens) {
    Request request = RepeatingRequest(1, 30);
    request.eos_token_ids = {all[3], all[5]};
    request.sampling.min_tokens = min_tokens;
    Steps steps = FakeSteps(Speculating(8));
    steps.scheduler.Add(request);
    steps.RunToEnd();
    EXPECT_EQ(steps.answers.at(1).tokens, FakeExecutor::Continue(request));
    EXPECT_GT(steps.scheduler.counters().proposals, 0u);
  }
}

TEST(SpeculationTest, NonFiniteLogitsEndTheSequenceInASeparateEvent) {
  FakeExecutor::Options fake;
  fake.is_corrupt = [](RequestId, int position) { return position == 14 + 3; };
  Steps steps = FakeSteps(Speculating(8), fake);
  const Request request = RepeatingRequest(1, 30);
  steps.scheduler.Add(request);
  steps.RunToEnd();
  const Tokens all = FakeExecutor::Continue(request);
  EXPECT_EQ(steps.answers.at(1).tokens, Tokens(all.begin(), all.begin() + 3));
  EXPECT_EQ(steps.answers.at(1).finish, FinishReason::kError);
  EXPECT_TRUE(steps.events.at(0).tokens.empty());
  EXPECT_GT(steps.scheduler.counters().accepted_tokens.total(), 0u);
}

TEST(SpeculationTest, StepOfManyRowsGetsNoProposals) {
  EngineOptions options = Speculating(4);
  options.max_num_batched_tokens = 64;
  Steps steps = FakeSteps(options);
  steps.scheduler.Add(RepeatingRequest(1, 30));
  steps.Step();
  steps.scheduler.Add(testing::MakeRequest(2, 60, 4, 100));
  steps.Step();
  ASSERT_EQ(steps.plan.size(), 2u);
  EXPECT_EQ(steps.plan[0].num_planned, 1);
  steps.Step();
  EXPECT_GT(steps.plan[0].num_planned, 1) << "the prompt is computed";
}

TEST(SpeculationTest, ProposalsPreemptNoSequence) {
  EngineOptions options = Speculating(4);
  options.num_pages = 8;
  options.max_model_len = 32;
  Steps steps = FakeSteps(options);
  steps.scheduler.Add(RepeatingRequest(1, 3));  // 16 slots
  steps.scheduler.Add(RepeatingRequest(2, 3));
  steps.scheduler.Add(testing::MakeRequest(3, 13, 2, 100));
  steps.RunToEnd();
  EXPECT_EQ(steps.scheduler.counters().preemptions, 0u);
  for (RequestId id : {1, 2})
    EXPECT_EQ(steps.answers.at(id).tokens, FakeExecutor::Continue(RepeatingRequest(id, 3)));
}

// ---- A real model.

std::vector<Request> AllKindsOfRequests() {
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 12; ++id) {
    Request request;
    request.id = id;
    Tokens prompt;
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

struct SpeculatingModel {
  DType dtype;
  const char* golden_case = nullptr;  // nullptr: the tiny one
  int window = 0;                     // of a model with states
};

class ModelSpeculationTest : public ::testing::TestWithParam<SpeculatingModel> {
 protected:
  Steps Run(EngineOptions options, const std::vector<Request>& requests) {
    ModelOptions model_options;
    model_options.model_dir = checkpoint_.dir();
    const auto& [dtype, golden_case, window] = GetParam();
    model_options.weight_format = WeightFormatOf(dtype);
    if (golden_case != nullptr) {
      model_options.model_dir = GoldenCasesDir() + "/" + golden_case;
      options.window = window;
      options.state_snapshot_interval = 2 * options.page_size;
      options.num_state_slots = options.MaxRunning() + 12;
      options.num_window_pages = static_cast<int>(options.WindowPagesMin(options.MaxRunning()) +
                                                  8 * options.WindowPagesPerSequence());
    }
    std::unique_ptr<Model> model = std::move(Model::Load(model_options, pool_)).value();
    KvCache kv = model
                     ->MakeUniformKvCache(
                         KvFormat::Of(model->config().attention, options.page_size, dtype),
                         {.num_pages = options.num_pages,
                          .num_window_pages = options.num_window_pages,
                          .num_states = std::max(1, options.num_state_slots)})
                     .value();
    Steps steps(options, std::make_unique<ModelExecutor>(std::move(model), std::move(kv), &pool_));
    for (Request request : requests) {
      if (request.constraint != nullptr) request.constraint = request.constraint->Clone();
      steps.scheduler.Add(std::move(request));
    }
    steps.RunToEnd();
    snapshots_ += steps.scheduler.states().counters().resumed;
    return steps;
  }

  uint64_t snapshots_ = 0;  // that were resumed from, in all runs
  TinyCheckpoint checkpoint_;
  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

TEST_P(ModelSpeculationTest, OutputIsBitwiseIndependentOfSpeculationAndBatch) {
  EngineOptions alone = {
      .page_size = 16, .num_pages = 100, .max_model_len = 160, .max_num_seqs = 1};
  const std::vector<Request> requests = AllKindsOfRequests();
  const std::map<RequestId, Answer> expected = Run(alone, requests).answers;
  ASSERT_EQ(expected.size(), requests.size());
  EngineOptions together = alone, small_steps = alone, few_pages = alone;
  together.max_num_seqs = 8;
  small_steps.max_num_seqs = 8;
  small_steps.max_num_batched_tokens = 16;
  few_pages.max_num_seqs = 8;
  few_pages.num_pages = 15;
  uint64_t hits = 0, preemptions = 0;
  for (EngineOptions options : {alone, together, small_steps, few_pages}) {
    for (const int tokens : {1, 4, 7}) {
      options.speculative_tokens = tokens;
      const Steps steps = Run(options, requests);
      for (const auto& [id, answer] : expected)
        ASSERT_EQ(steps.answers.at(id), answer) << "request=" << id << " proposed=" << tokens;
      const SchedulerCounters& counters = steps.scheduler.counters();
      EXPECT_GT(counters.accepted_tokens.total(), 30u);
      EXPECT_LT(counters.accepted_tokens.total(), counters.proposed_tokens.total());
      hits += counters.prefix_hits;
      preemptions += counters.preemptions;
    }
  }
  EXPECT_GT(hits, 0u);
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(snapshots_ > 0, GetParam().golden_case != nullptr);
}

// Two of three requests are constrained, by different constraints.
std::vector<Request> ConstrainedRequests() {
  std::vector<Request> requests = AllKindsOfRequests();
  for (Request& request : requests) {
    if (request.id % 3 == 2) continue;
    request.constraint = std::make_shared<testing::FakeConstraint>(testing::FakeConstraint::Options{
        .seed = request.id,
        .vocab_size = 128,
        .one_of = request.id % 4 == 0 ? 1 : 4,
        .ends = request.id == 10 ? Tokens() : request.eos_token_ids,
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

TEST_P(ModelSpeculationTest, ConstrainedOutputsAreBitwiseIndependentOfSpeculation) {
  EngineOptions alone = {
      .page_size = 16, .num_pages = 100, .max_model_len = 160, .max_num_seqs = 1};
  const std::vector<Request> requests = ConstrainedRequests();
  const std::map<RequestId, Answer> expected = Run(alone, requests).answers;
  const std::map<RequestId, Answer> unconstrained = Run(alone, AllKindsOfRequests()).answers;
  for (const Request& request : requests) {
    const Answer& answer = expected.at(request.id);
    if (request.constraint == nullptr) {
      EXPECT_EQ(answer, unconstrained.at(request.id)) << request.id;
      continue;
    }
    const std::unique_ptr<TokenConstraint> check = request.constraint->Clone();
    for (const int32_t token : answer.tokens) {
      if (token == request.eos_token_ids[0]) break;
      ASSERT_TRUE(check->Accept(token).ok()) << request.id;
    }
  }
  EXPECT_EQ(expected.at(7).finish, FinishReason::kStop);
  EXPECT_EQ(expected.at(10).finish, FinishReason::kError);

  EngineOptions together = alone, small_steps = alone, few_pages = alone;
  together.max_num_seqs = 8;
  small_steps.max_num_seqs = 8;
  small_steps.max_num_batched_tokens = 16;
  few_pages.max_num_seqs = 8;
  few_pages.num_pages = 15;
  uint64_t preemptions = 0, accepted = 0;
  for (EngineOptions options : {alone, together, small_steps, few_pages}) {
    for (const int tokens : {0, 1, 6}) {
      options.speculative_tokens = tokens;
      const Steps steps = Run(options, requests);
      for (const auto& [id, answer] : expected)
        ASSERT_EQ(steps.answers.at(id), answer) << "request=" << id << " proposed=" << tokens;
      preemptions += steps.scheduler.counters().preemptions;
      accepted += steps.scheduler.counters().accepted_tokens.total();
    }
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(accepted, 50u);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelSpeculationTest,
    ::testing::Values(SpeculatingModel{DType::kFloat32}, SpeculatingModel{DType::kBFloat16},
                      SpeculatingModel{DType::kFloat32, "phi4flash_stored_lm_head_shards", 7}));

}  // namespace
}  // namespace diffserve
