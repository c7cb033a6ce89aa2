// SPDX-License-Identifier: Apache-2.0
// The Scheduler with a draft model: what it computes, and how many tokens it guesses.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"

namespace diffserve {
namespace {

using Tokens = std::vector<int32_t>;

EngineOptions Drafting() {
  return {.page_size = 16,
          .num_pages = 1200,
          .max_model_len = 8192,
          .speculative_tokens = 7,
          .draft_cost = 0.05,
          .draft_len_max = 8192};
}

// Random tokens, which no text predicts.
Tokens NewText(uint64_t seed, int size) {
  std::mt19937_64 random(seed);
  Tokens tokens(static_cast<size_t>(size));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 100000);
  return tokens;
}

// Steps whose draws are the tokens of given texts. The draft model guesses a token right with the
// same chance everywhere. A step costs `overhead` and 1 per row, and the draft model as much as its
// size says.
class DraftedSteps {
 public:
  DraftedSteps(const EngineOptions& options, int overhead, double right_chance)
      : scheduler(options),
        overhead_(overhead),
        draft_cost_(options.draft_cost),
        right_chance_(right_chance) {
    costs.overhead_tokens = overhead;
  }

  void Add(const Tokens& text, int prompt_tokens) {
    const RequestId id = texts_.size() + 1;
    Request request = testing::MakeRequest(id, 0, static_cast<int>(text.size()) - prompt_tokens);
    request.prompt = Tokens(text.begin(), text.begin() + prompt_tokens);
    texts_[id] = text;
    scheduler.Add(std::move(request));
  }

  // Runs a step. Returns the draft model's work for each sequence, by request.
  std::map<RequestId, DraftWork> Step() {
    const StepPlan plan = scheduler.Plan(costs);
    const DraftLoad load = plan.draft_load();
    draft_tokens_ = load.tokens;
    cost_ = overhead_ * (1 + draft_cost_ * load.passes) + plan.num_tokens() +
            draft_cost_ * load.tokens;
    std::map<RequestId, DraftWork> works;
    StepResult results;
    for (const PlannedSequence& planned : plan.sequences) {
      if (!planned.draft.empty()) works[planned.id()] = planned.draft;
      const Tokens& text = texts_.at(planned.id());
      SequenceResult& result = results.emplace_back();
      for (int i = planned.end() - planned.samples + 1; i <= planned.end(); ++i)
        result.samples.emplace_back().token = text[static_cast<size_t>(i)];
      for (int i = 0; i < planned.draft.guesses; ++i) {
        const bool is_right = std::uniform_real_distribution()(random_) < right_chance_;
        result.guesses.push_back(is_right ? text[static_cast<size_t>(planned.draft.end + i)] : -5);
      }
    }
    num_tokens_ = 0;
    for (const TokenEvent& event : scheduler.Commit(results))
      num_tokens_ += std::ssize(event.tokens);
    scheduler.CheckInvariants();
    return works;
  }

  // Runs to the end. Returns the cost of the steps in which all decode, over what it is without
  // proposals.
  double CostRatio() {
    double cost = 0, plain_cost = 0;
    const auto num_texts = static_cast<double>(texts_.size());
    while (scheduler.HasWork()) {
      const bool decodes = scheduler.running().size() == texts_.size() &&
                           scheduler.running().back()->num_outputs() > 0;
      Step();
      if (!decodes) continue;
      cost += cost_;
      plain_cost += static_cast<double>(num_tokens_) * (overhead_ + num_texts) / num_texts;
    }
    return cost / plain_cost;
  }
  // Runs to the end, without work for the draft model. Returns the number of steps.
  int StepsWithoutDrafts() {
    int count = 0;
    for (; scheduler.HasWork(); ++count) EXPECT_TRUE(Step().empty());
    return count;
  }
  uint64_t Accepted(GuessSource source) const {
    GuessCounts counts = scheduler.proposals().counters().accepted_tokens;
    return counts.of(source);
  }
  int draft_tokens() const { return draft_tokens_; }  // of the last step

  Scheduler scheduler;
  StepCosts costs;

 private:
  const double overhead_, draft_cost_, right_chance_;
  std::map<RequestId, Tokens> texts_;
  std::mt19937_64 random_{1};
  double cost_ = 0;         // of the last step
  int64_t num_tokens_ = 0;  // that it gave
  int draft_tokens_ = 0;
};

TEST(DraftTest, GuessesFollowTheKnownTokensAndRightOnesAreNotDraftedAgain) {
  DraftedSteps steps(Drafting(), 20, 1);
  steps.Add(NewText(1, 200), 50);
  EXPECT_TRUE(steps.Step().empty()) << "the prompt is computed";
  const DraftWork first = steps.Step().at(1);
  EXPECT_EQ(first.first, 0);
  EXPECT_EQ(first.end, 51);
  EXPECT_GE(first.guesses, 3);
  const DraftWork second = steps.Step().at(1);
  EXPECT_EQ(second.first, first.computed_end());
  EXPECT_EQ(second.end, 51 + first.guesses + 1);
  EXPECT_EQ(second.end - second.first, 2) << "the last guess, and the draw after it";
  EXPECT_EQ(steps.Accepted(GuessSource::kDraft),
            static_cast<uint64_t>(first.guesses + second.guesses));
}

TEST(DraftTest, WrongGuessesAreDraftedAgainAsWhatWasDrawn) {
  DraftedSteps steps(Drafting(), 20, 0);
  steps.Add(NewText(1, 200), 50);
  steps.Step();
  ASSERT_GE(steps.Step().at(1).guesses, 3);
  const DraftWork second = steps.Step().at(1);
  EXPECT_EQ(second.first, 51);
  EXPECT_EQ(second.end, 52);
  EXPECT_EQ(steps.scheduler.proposals().counters().accepted_tokens.total(), 0u);
}

TEST(DraftTest, LongPromptIsCaughtUpWithBoundedWorkPerStep) {
  DraftedSteps steps(Drafting(), 20, 1);
  steps.Add(NewText(1, 3000), 2000);
  steps.Step();
  int drafted = 0;
  for (int i = 0; i < 5; ++i) {
    const DraftWork work = steps.Step().at(1);
    EXPECT_EQ(work.first, drafted);
    EXPECT_EQ(work.guesses, i < 4 ? 0 : work.guesses);
    EXPECT_LE(steps.draft_tokens(), 20 / 0.05 + 7) << "as much as a step's overhead";
    drafted = work.computed_end();
  }
  EXPECT_GT(steps.Step().at(1).guesses, 0);
}

TEST(DraftTest, FewRemainingTokensDoNotRepayALongPrompt) {
  DraftedSteps steps(Drafting(), 20, 1);
  steps.Add(NewText(1, 3010), 3000);
  EXPECT_GE(steps.StepsWithoutDrafts(), 10);
}

TEST(DraftTest, SequenceBeyondTheDraftModelsLengthGetsNoGuesses) {
  EngineOptions options = Drafting();
  options.draft_len_max = 80;
  DraftedSteps steps(options, 20, 1);
  steps.Add(NewText(1, 150), 50);
  int end = 0;
  while (steps.scheduler.HasWork()) {
    for (const auto& [id, work] : steps.Step()) end = work.computed_end();
  }
  EXPECT_EQ(end, 80);
}

TEST(DraftTest, FullBatchIsNotDrafted) {
  DraftedSteps steps(Drafting(), 100, 1);
  for (uint64_t i = 1; i <= 8; ++i) steps.Add(NewText(i, 150), 50);
  EXPECT_EQ(steps.CostRatio(), 1);
  EXPECT_EQ(steps.scheduler.proposals().counters().proposals, 0u);
}

TEST(DraftTest, SharedPagesAreDraftedOnce) {
  DraftedSteps steps(Drafting(), 20, 1);
  const Tokens text = NewText(1, 400);
  steps.Add(text, 100);
  steps.Step();
  steps.Step();
  Tokens other = NewText(2, 400);
  std::copy_n(text.begin(), 70, other.begin());
  steps.Add(other, 100);
  steps.Step();
  EXPECT_EQ(steps.Step().at(2).first, 64) << "four pages are the first sequence's";
}

TEST(DraftTest, SequencesThatWouldDraftTheSamePageTakeTurns) {
  EngineOptions options = Drafting();
  options.max_num_batched_tokens = 500;
  DraftedSteps steps(options, 20, 1);
  Tokens texts[] = {NewText(1, 900), NewText(2, 900)};
  std::copy_n(texts[0].begin(), 400, texts[1].begin());
  for (const Tokens& text : texts) steps.Add(text, 410);
  bool took_turns = false, drafts_both = false;
  while (steps.scheduler.HasWork()) {
    const size_t num_drafted = steps.Step().size();
    took_turns |= num_drafted == 1 && !drafts_both && steps.scheduler.running().size() == 2;
    drafts_both |= num_drafted == 2;
  }
  EXPECT_TRUE(took_turns);
  EXPECT_TRUE(drafts_both);
}

TEST(DraftTest, OwnTextIsProposedWhereItIsLikelier) {
  DraftedSteps steps(Drafting(), 20, 0.6);
  const Tokens once = NewText(1, 150);
  Tokens text;
  for (int i = 0; i < 8; ++i) text.insert(text.end(), once.begin(), once.end());
  steps.Add(text, 100);
  while (steps.scheduler.HasWork()) steps.Step();
  EXPECT_GT(steps.Accepted(GuessSource::kDraft), 10u);
  EXPECT_GT(steps.Accepted(GuessSource::kPrompt) + steps.Accepted(GuessSource::kOutput), 700u);
}

TEST(DraftTest, GoodDraftSavesWhatItsCostsAllow) {
  for (const int streams : {1, 2, 4}) {
    DraftedSteps steps(Drafting(), 20, 0.8);
    for (int i = 1; i <= streams; ++i) steps.Add(NewText(static_cast<uint64_t>(i), 1000), 50);
    EXPECT_LT(steps.CostRatio(), streams == 1 ? 0.5 : streams == 2 ? 0.6 : 0.8) << streams;
  }
}

TEST(DraftTest, UselessDraftCostsLessThanOnePercent) {
  for (const double cost : {0.02, 0.2, 0.6}) {
    for (const int overhead : {1, 5, 100}) {
      for (const uint64_t streams : {1, 2, 4}) {
        EngineOptions options = Drafting();
        options.draft_cost = cost;
        DraftedSteps steps(options, overhead, 0.01);
        for (uint64_t i = 1; i <= streams; ++i) steps.Add(NewText(i, 1600), 50);
        EXPECT_LT(steps.CostRatio(), 1.01)
            << "cost=" << cost << " overhead=" << overhead << " streams=" << streams;
      }
    }
  }
}

TEST(DraftTest, MeasuredCostReplacesThatOfTheSize) {
  DraftedSteps steps(Drafting(), 20, 1);
  steps.costs.draft = DraftCost{.pass = 25, .token = 0.1};
  steps.Add(NewText(1, 200), 50);
  EXPECT_GE(steps.StepsWithoutDrafts(), 150);
}

}  // namespace
}  // namespace diffserve
