// SPDX-License-Identifier: Apache-2.0
// How many tokens the Scheduler proposes, with given costs and texts instead of a model.
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

Tokens RandomTokens(uint64_t seed, int size, uint64_t vocab) {
  std::mt19937_64 random(seed);
  Tokens tokens(static_cast<size_t>(size));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

// `times` copies of the same random tokens.
Tokens RepeatedTokens(int size, int times) {
  const Tokens once = RandomTokens(1, size, 1000);
  Tokens tokens;
  for (int i = 0; i < times; ++i) tokens.insert(tokens.end(), once.begin(), once.end());
  return tokens;
}

EngineOptions Proposing(int tokens) {
  return {.page_size = 16, .num_pages = 600, .max_model_len = 8192, .speculative_tokens = tokens};
}

// Steps whose draws are the tokens of a given text, whatever is proposed. A step costs `overhead`
// and 1 per row.
class ScriptedSteps {
 public:
  ScriptedSteps(const EngineOptions& options, int overhead)
      : scheduler_(options), overhead_(overhead) {
    costs_.overhead_tokens = overhead;
  }

  void Add(const Tokens& text, int prompt_tokens) {
    const RequestId id = texts_.size() + 1;
    Request request = testing::MakeRequest(id, 0, static_cast<int>(text.size()) - prompt_tokens);
    request.prompt = Tokens(text.begin(), text.begin() + prompt_tokens);
    texts_[id] = text;
    scheduler_.Add(std::move(request));
  }

  void SetRowCosts(const RowCosts& costs) { costs_.rows = costs; }

  // Returns how many tokens each planned sequence got as proposals.
  std::vector<int> Step() {
    const StepPlan plan = scheduler_.Plan(costs_);
    std::vector<int> proposed;
    StepResult results;
    cost_ = overhead_ + plan.num_tokens();
    for (const PlannedSequence& planned : plan.sequences) {
      proposed.push_back(static_cast<int>(planned.proposed.size()));
      SequenceResult& result = results.emplace_back();
      for (int i = planned.end() - planned.samples + 1; i <= planned.end(); ++i)
        result.samples.emplace_back().token = texts_.at(planned.id())[static_cast<size_t>(i)];
    }
    num_tokens_ = 0;
    for (const TokenEvent& event : scheduler_.Commit(results))
      num_tokens_ += std::ssize(event.tokens);
    return proposed;
  }

  // Runs to the end. Returns the cost of the steps in which all decode, over what it is without
  // proposals.
  double CostRatio() {
    double cost = 0, plain_cost = 0;
    const auto num_texts = static_cast<double>(texts_.size());
    while (scheduler_.HasWork()) {
      const bool decodes = scheduler_.running().size() == texts_.size() &&
                           scheduler_.running().back()->num_outputs() > 0;
      const std::vector<int> proposed = Step();
      proposed_max_ = std::max(proposed_max_, std::ranges::max(proposed));
      if (!decodes) continue;
      cost += cost_;
      plain_cost += static_cast<double>(num_tokens_) * (overhead_ + num_texts) / num_texts;
    }
    return cost / plain_cost;
  }
  int proposed_max() const { return proposed_max_; }  // of CostRatio

 private:
  Scheduler scheduler_;
  StepCosts costs_;
  const int overhead_;
  std::map<RequestId, Tokens> texts_;
  int cost_ = 0;            // of the last step
  int64_t num_tokens_ = 0;  // that it gave
  int proposed_max_ = 0;
};

TEST(SpeculationCostTest, RandomTextLosesLessThanOnePercent) {
  for (const uint64_t vocab : {10, 100, 1000}) {
    for (const int overhead : {0, 5, 100}) {
      for (const uint64_t streams : {1, 2, 4, 8}) {
        ScriptedSteps steps(Proposing(7), overhead);
        for (uint64_t i = 1; i <= streams; ++i) steps.Add(RandomTokens(i, 1100, vocab), 100);
        const double ratio = steps.CostRatio();
        EXPECT_LT(ratio, 1.01) << "vocab=" << vocab << " overhead=" << overhead
                               << " streams=" << streams;
        EXPECT_GT(ratio, 0.99);
      }
    }
  }
}

TEST(SpeculationCostTest, RepeatedTextGetsSevenTokensPerStep) {
  ScriptedSteps steps(Proposing(7), 5);
  steps.Add(RepeatedTokens(200, 6), 300);
  EXPECT_LT(steps.CostRatio(), 0.29) << "8 tokens for the cost of 13 rows: 13 / (8 * 6) is 0.27";
  EXPECT_EQ(steps.proposed_max(), 7);
  ScriptedSteps limited(Proposing(2), 5);
  limited.Add(RepeatedTokens(200, 6), 300);
  EXPECT_GT(limited.CostRatio(), 0.4);
  EXPECT_EQ(limited.proposed_max(), 2);
}

TEST(SpeculationCostTest, FullBatchProposesNothing) {
  ScriptedSteps steps(Proposing(7), 100);
  for (int i = 0; i < 8; ++i) steps.Add(RepeatedTokens(100, 6), 300);
  EXPECT_EQ(steps.CostRatio(), 1);
}

TEST(SpeculationCostTest, FewerTokensAreProposedTheMoreARowCosts) {
  int before = 0;
  for (const int overhead : {1, 5, 30, 100}) {
    ScriptedSteps steps(Proposing(7), overhead);
    steps.Add(RepeatedTokens(50, 3), 54);  // matches five tokens
    EXPECT_EQ(steps.Step(), std::vector{0});
    const std::vector<int> proposed = steps.Step();
    EXPECT_GT(proposed[0], before) << overhead;
    before = proposed[0];
  }
  EXPECT_EQ(before, 7);
}

// Costs of steps with 1 to 8 rows.
RowCosts Costs(std::initializer_list<double> of_rows) {
  RowCosts costs{};
  std::ranges::copy(of_rows, costs.begin() + 1);
  return costs;
}

TEST(SpeculationCostTest, FreeRowsAreUsedAlsoIfTheOverheadIsSmall) {
  ScriptedSteps steps(Proposing(7), 1);
  steps.SetRowCosts(Costs({10, 10, 10, 10, 10, 30, 40, 50}));
  steps.Add(RepeatedTokens(50, 3), 54);  // matches five tokens
  EXPECT_EQ(steps.Step(), std::vector{0});
  EXPECT_EQ(steps.Step(), std::vector{4}) << "the fifth row is the last that is free";
}

TEST(SpeculationCostTest, ExpensiveRowIsBoughtIfThoseAfterItAreFree) {
  ScriptedSteps steps(Proposing(7), 1);
  steps.Add(RepeatedTokens(200, 3), 399);  // matches many tokens
  EXPECT_EQ(steps.Step(), std::vector{0});
  steps.SetRowCosts(Costs({10, 28, 28, 28, 28, 28, 28, 28}));
  EXPECT_EQ(steps.Step(), std::vector{7}) << "one guess alone would not pay";
  steps.SetRowCosts(Costs({10, 28, 46, 64, 82, 100, 118, 136}));
  EXPECT_EQ(steps.Step(), std::vector{0});
}

TEST(SpeculationCostTest, RowsGoToTheLikeliestTokens) {
  ScriptedSteps steps(Proposing(7), 10);
  steps.Add(RepeatedTokens(100, 2), 101);  // matches two tokens
  steps.Add(RepeatedTokens(100, 2), 140);
  EXPECT_EQ(steps.Step(), (std::vector{0, 0}));
  const std::vector<int> proposed = steps.Step();
  ASSERT_EQ(proposed.size(), 2u);
  EXPECT_LE(proposed[0], 1);
  EXPECT_GE(proposed[1], 5);
  EXPECT_EQ(proposed[0] + proposed[1], 6) << "eight rows";
}

}  // namespace
}  // namespace diffserve
