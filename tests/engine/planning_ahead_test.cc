// SPDX-License-Identifier: Apache-2.0
// The Scheduler with one step in flight: what it plans while a token, an end or a page is not known
// yet.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"

namespace diffserve {
namespace {

using testing::FakeExecutor;
using testing::MakeRequest;
using testing::PlannedCopy;

class PlanningAheadTest : public ::testing::Test {
 protected:
  PlanningAheadTest() {
    options_.num_pages = 16;
    options_.max_model_len = 64;
  }

  void Start() {
    scheduler_.emplace(options_);
    FakeExecutor::Options fake;
    fake.depth = 2;
    executor_.emplace(options_, fake);
  }
  void Add(const Request& request) {
    if (!scheduler_) Start();
    scheduler_->Add(request);
  }
  // Plans the next step, and launches it unless it is empty.
  std::vector<PlannedCopy> Plan() {
    const StepPlan plan = scheduler_->Plan();
    scheduler_->CheckInvariants();
    if (!plan.sequences.empty()) executor_->Launch(plan);
    return testing::CopyOf(plan);
  }
  std::vector<TokenEvent> Commit() {
    std::vector<TokenEvent> events = scheduler_->Commit(executor_->Collect());
    scheduler_->CheckInvariants();
    return events;
  }
  const PagePool& pool() const { return scheduler_->pool(); }

  EngineOptions options_ = testing::SmallEngine();
  std::optional<Scheduler> scheduler_;
  std::optional<FakeExecutor> executor_;
};

using Tokens = std::vector<int32_t>;

TEST_F(PlanningAheadTest, ExecutorFillsInTheTokenInFlight) {
  const Request request = MakeRequest(1, 5, 4);
  const Tokens expected = FakeExecutor::Continue(request);
  Add(request);
  Plan();
  const std::vector<PlannedCopy> ahead = Plan();
  ASSERT_EQ(ahead.size(), 1u);
  EXPECT_EQ(ahead[0].tokens, (Tokens{kDrawnByStepBefore}));
  EXPECT_EQ(ahead[0].num_computed, 5);
  EXPECT_EQ(ahead[0].samples, 1);
  EXPECT_EQ(Commit().at(0).tokens, (Tokens{expected[0]}));
  EXPECT_EQ(Commit().at(0).tokens, (Tokens{expected[1]}));
  EXPECT_EQ(Plan().at(0).tokens, (Tokens{expected[1]}))
      << "nothing is in flight, so the token is known";
}

TEST_F(PlanningAheadTest, LongPromptIsPlannedAheadChunkByChunk) {
  Add(MakeRequest(1, 40, 2));
  EXPECT_EQ(Plan().at(0).num_computed, 0);
  EXPECT_EQ(Plan().at(0).num_computed, 16);
  EXPECT_TRUE(Commit().empty());
  EXPECT_EQ(Plan().at(0).num_computed, 32);
  EXPECT_TRUE(Commit().empty());
  EXPECT_EQ(Plan().at(0).tokens, (Tokens{kDrawnByStepBefore}));
  EXPECT_EQ(Commit().size(), 1u);
}

TEST_F(PlanningAheadTest, SequenceThatIsCertainToEndIsNotPlannedAgain) {
  Add(MakeRequest(1, 5, 2));
  EXPECT_EQ(Plan().size(), 1u);
  EXPECT_EQ(Plan().size(), 1u);
  Commit();
  EXPECT_TRUE(Plan().empty()) << "the second token is in flight";
  Add(MakeRequest(2, 5, 2, 50));
  EXPECT_EQ(Plan().at(0).id, 2u) << "others are planned meanwhile";
  EXPECT_EQ(Commit().at(0).finish, FinishReason::kLength);
  EXPECT_EQ(scheduler_->running().size(), 1u);
}

TEST_F(PlanningAheadTest, ScoredPromptIsNotPlannedAgain) {
  Request request = MakeRequest(1, 20, 0);
  request.sampling.prompt_logprobs = 0;
  Add(request);
  EXPECT_EQ(Plan().at(0).num_planned, 16);
  EXPECT_EQ(Plan().at(0).num_planned, 4);
  EXPECT_TRUE(Commit().empty());
  EXPECT_TRUE(Plan().empty());
  const std::vector<TokenEvent> events = Commit();
  EXPECT_EQ(events.at(0).finish, FinishReason::kLength);
  EXPECT_EQ(events.at(0).prompt_logprobs.size(), 19u);
}

TEST_F(PlanningAheadTest, ResultOfAnEndedSequenceIsDroppedAndItsPageIsFree) {
  Request request = MakeRequest(1, 6, 20);
  request.eos_token_ids = {FakeExecutor::Continue(request)[1]};  // the token at position 7, the
                                                                 // last slot of the second page
  Add(request);
  Plan();
  Plan();
  Commit();
  const int32_t second_page = Plan().at(0).pages.at(1);  // computes the slot of the EOS
  const std::vector<TokenEvent> events = Commit();
  EXPECT_EQ(events.at(0).finish, FinishReason::kStop);
  EXPECT_EQ(pool().num_in_use(), 0);
  EXPECT_EQ(pool().num_cached(), 1);
  EXPECT_FALSE(scheduler_->index().Contains(second_page))
      << "its last slot is written by a step that is never committed";
  const Request next = MakeRequest(2, 30, 3, 100);
  Add(next);
  Plan();  // takes the page while the step that writes it is in flight
  EXPECT_TRUE(Commit().empty()) << "the dropped result";
  Tokens tokens;
  while (scheduler_->HasWork()) {
    Plan();
    for (const TokenEvent& event : Commit())
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  EXPECT_EQ(tokens, FakeExecutor::Continue(next));
}

TEST_F(PlanningAheadTest, PenaltiesWaitForTheTokenTheyCount) {
  Request request = MakeRequest(1, 5, 3);
  request.sampling.repetition_penalty = 1.2f;
  const Tokens expected = FakeExecutor::Continue(request);
  Add(request);
  Plan();
  EXPECT_TRUE(Plan().empty());
  Commit();
  EXPECT_EQ(Plan().at(0).outputs, (Tokens{expected[0]}));
  Commit();
  EXPECT_EQ(Plan().at(0).outputs, (Tokens{expected[0], expected[1]}));
  Add(MakeRequest(2, 5, 3, 50));
  EXPECT_EQ(Plan().at(0).id, 2u) << "its last token is in flight: no other sequence waits for it";
}

TEST_F(PlanningAheadTest, MinTokensCountTheDrawInFlight) {
  Request request = MakeRequest(1, 5, 5);
  request.sampling.min_tokens = 2;
  request.eos_token_ids = {9};
  request.sampling.stop_token_ids = {8};
  Add(request);
  EXPECT_EQ(Plan().at(0).banned_tokens, (Tokens{8, 9}));
  EXPECT_EQ(Plan().at(0).banned_tokens, (Tokens{8, 9}));
  Commit();
  EXPECT_EQ(Plan().at(0).banned_tokens, Tokens());
}

TEST_F(PlanningAheadTest, PagesOfAStepInFlightAreNotCached) {
  Add(MakeRequest(1, 9, 8));
  Plan();
  Add(MakeRequest(2, 10, 8));
  EXPECT_EQ(Plan().size(), 1u) << "the second one waits for the pages of the first";
  EXPECT_EQ(scheduler_->counters().deferrals, 1u);
  EXPECT_EQ(scheduler_->index().size(), 0);
  Commit();
  EXPECT_EQ(scheduler_->index().size(), 2);
  const std::vector<PlannedCopy> both = Plan();
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[1].num_computed, 8);
}

TEST_F(PlanningAheadTest, PageWithATokenInFlightIsNotCached) {
  Add(MakeRequest(1, 7, 8));
  Plan();
  Plan();  // fills the second page with a token that is not known
  Commit();
  EXPECT_EQ(scheduler_->index().size(), 1);
  Plan();
  EXPECT_EQ(scheduler_->index().size(), 1);
  Commit();
  EXPECT_EQ(scheduler_->index().size(), 2);
}

// Three sequences have two pages each after four steps. There is a seventh page, and two sequences
// need it in the fifth step.
TEST_F(PlanningAheadTest, NoSequenceIsPreemptedWhileAStepIsInFlight) {
  options_.num_pages = 7;
  options_.max_model_len = 28;
  Add(MakeRequest(1, 5, 20));
  Add(MakeRequest(2, 5, 20, 50));
  Add(MakeRequest(3, 4, 20, 100));
  EXPECT_EQ(Plan().size(), 3u);
  for (int step = 2; step <= 4; ++step) {
    EXPECT_EQ(Plan().size(), 3u);
    Commit();
  }
  EXPECT_TRUE(Plan().empty());
  EXPECT_EQ(pool().num_free(), 1) << "the page that the first one took is released again";
  EXPECT_EQ(scheduler_->counters().preemptions, 0u);
  Commit();
  EXPECT_EQ(Plan().size(), 2u);
  EXPECT_EQ(scheduler_->counters().preemptions, 1u);
  EXPECT_EQ(scheduler_->queue().Next()->request.id, 3u);
}

TEST_F(PlanningAheadTest, PendingEndFreesTheMissingPages) {
  options_.num_pages = 7;
  options_.max_model_len = 28;
  Add(MakeRequest(1, 5, 20));
  Add(MakeRequest(2, 5, 20, 50));
  Add(MakeRequest(3, 4, 4, 100));
  Plan();
  for (int step = 2; step <= 4; ++step) {
    Plan();
    Commit();
  }
  EXPECT_TRUE(Plan().empty());
  Commit();
  EXPECT_EQ(Plan().size(), 2u);
  EXPECT_EQ(scheduler_->counters().preemptions, 0u);
}

TEST_F(PlanningAheadTest, ResultsInFlightOfACancelledSequenceAreDropped) {
  options_.enable_prefix_caching = false;
  Add(MakeRequest(1, 12, 9));
  Add(MakeRequest(2, 4, 9, 50));
  Plan();
  Plan();
  ASSERT_TRUE(scheduler_->End(1, FinishReason::kCancelled, Status()).has_value());
  EXPECT_EQ(pool().num_in_use(), 2);
  const Request next = MakeRequest(3, 12, 2, 100);
  Add(next);
  for (int step = 0; step < 2; ++step) {
    const std::vector<TokenEvent> events = Commit();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].request, 2u);
  }
  Plan();
  Plan();
  Tokens tokens;
  for (int step = 0; step < 2; ++step) {
    for (const TokenEvent& event : Commit()) {
      if (event.request == 3) tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  EXPECT_EQ(tokens, FakeExecutor::Continue(next));
}

TEST_F(PlanningAheadTest, StepsInFlightAreCommittedAfterAllRequestsAreCancelled) {
  Add(MakeRequest(1, 12, 9));
  Plan();
  Plan();
  ASSERT_TRUE(scheduler_->End(1, FinishReason::kCancelled, Status()).has_value());
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_TRUE(Commit().empty());
  EXPECT_TRUE(Commit().empty());
}

}  // namespace
}  // namespace diffserve
