// SPDX-License-Identifier: Apache-2.0
// Speculation: the Scheduler with proposed tokens, and a model's output, which must keep the same
// bits.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/model_executor.h"
#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/engine/speculation_steps.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

using testing::AllKindsOfRequests;
using testing::ConstrainedRequests;
using testing::FakeExecutor;
using Answer = testing::SpeculationAnswer;
using Steps = testing::SpeculationSteps;
using Tokens = std::vector<int32_t>;

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
  steps.costs.overhead_tokens = 20;
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
  const ProposalPlanner::Counters& counters = steps.scheduler.proposals().counters();
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
  steps.costs.overhead_tokens = 100;
  steps.scheduler.Add(request);
  steps.RunToEnd();
  EXPECT_EQ(steps.answers.at(1).tokens, expected);
  EXPECT_EQ(steps.events.at(0).prediction.accepted, 7) << "tokens 1 to 7; 0 and 8 were draws";
  EXPECT_GE(steps.events.at(0).prediction.rejected, 1);
  const ProposalPlanner::Counters& counters = steps.scheduler.proposals().counters();
  EXPECT_EQ(counters.accepted_tokens.by_source, (std::array<uint64_t, 6>{0, 7, 0, 0, 0, 0}));
}

TEST(SpeculationTest, ForcedTokensAreProposedAndVerified) {
  Steps steps = FakeSteps(Speculating(7));
  Request request = testing::MakeRequest(1, 5, 60);
  // One token is allowed at a time, and the text repeats nothing.
  request.constraint = std::make_shared<testing::FakeConstraint>(
      testing::FakeConstraint::Options{.seed = 4, .one_of = 1 << 30});
  const Tokens expected = FakeExecutor::Continue(request);
  steps.costs.overhead_tokens = 100;
  steps.scheduler.Add(request);
  steps.RunToEnd();
  EXPECT_EQ(steps.answers.at(1).tokens, expected);
  const ProposalPlanner::Counters& counters = steps.scheduler.proposals().counters();
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
    EXPECT_GT(steps.scheduler.proposals().counters().proposals, 0u);
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
  EXPECT_GT(steps.scheduler.proposals().counters().accepted_tokens.total(), 0u);
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
      const ProposalPlanner::Counters& proposals = steps.scheduler.proposals().counters();
      const SchedulerCounters& counters = steps.scheduler.counters();
      EXPECT_GT(proposals.accepted_tokens.total(), 30u);
      EXPECT_LT(proposals.accepted_tokens.total(), proposals.proposed_tokens.total());
      hits += counters.prefix_hits;
      preemptions += counters.preemptions;
    }
  }
  EXPECT_GT(hits, 0u);
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(snapshots_ > 0, GetParam().golden_case != nullptr);
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
      accepted += steps.scheduler.proposals().counters().accepted_tokens.total();
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
