// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/proposer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace diffserve {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kEnough = 1 << 20;  // operations

Guess GuessOf(Proposer& proposer, const Tokens& prompt, const Tokens& outputs = {},
              int limit = 100) {
  proposer.Read(prompt, outputs, kEnough);
  return proposer.Propose(prompt, outputs, limit);
}

// The guess of a new Proposer for the prompt.
Guess FirstGuess(const Tokens& prompt, int max_tokens = 4, int limit = 100) {
  Proposer proposer(max_tokens);
  return GuessOf(proposer, prompt, {}, limit);
}

TEST(ProposerTest, ProposesWhatFollowedTheLongestMatch) {
  EXPECT_EQ(FirstGuess({1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4}).tokens, (Tokens{5, 6, 7, 8}));
  EXPECT_EQ(FirstGuess({1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 1, 2, 3, 4}, 2).tokens, (Tokens{5, 6}))
      << "a match of four tokens wins over a nearer one of three";
  EXPECT_EQ(FirstGuess({1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 4}, 1).tokens, (Tokens{8}))
      << "the latest occurrence of the same match";
  EXPECT_EQ(FirstGuess({1, 2, 3}).tokens, Tokens());
  EXPECT_EQ(FirstGuess({}).tokens, Tokens());
}

TEST(ProposerTest, RepetitionContinuesBeyondTheText) {
  EXPECT_EQ(FirstGuess({7, 7, 7, 7, 7}, 6).tokens, (Tokens{7, 7, 7, 7, 7, 7}));
  EXPECT_EQ(FirstGuess({1, 2, 1, 2, 1, 2}, 5).tokens, (Tokens{1, 2, 1, 2, 1}));
}

TEST(ProposerTest, GuessIsLimited) {
  const Tokens text = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4};
  EXPECT_EQ(FirstGuess(text, 4, 2).tokens, (Tokens{5, 6}));
  EXPECT_EQ(FirstGuess(text, 4, 0).tokens, Tokens());
  EXPECT_EQ(FirstGuess(text, 4, -1).tokens, Tokens());
}

TEST(ProposerTest, MatchesSpanPromptAndOutput) {
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 1}, outputs = {2, 3, 4};
  Proposer proposer(2);
  EXPECT_EQ(GuessOf(proposer, prompt, outputs).tokens, (Tokens{5, 6}));
}

TEST(ProposerTest, ProposesNothingUntilTheTextIsRead) {
  const Tokens text = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4};
  Proposer proposer(4);
  int calls = 0;
  while (proposer.Propose(text, {}, 4).tokens.empty()) {
    EXPECT_GT(proposer.Read(text, {}, 1), 0);
    ++calls;
  }
  EXPECT_GE(calls, std::ssize(text));
  EXPECT_EQ(proposer.Propose(text, {}, 4).tokens, (Tokens{5, 6, 7, 8}));
}

TEST(ProposerTest, PredictionFollowsThePrompt) {
  const Tokens prompt = {1, 2, 3, 1, 2}, prediction = {30, 31, 32, 33, 34, 35};
  Proposer proposer(4, prompt, prediction);
  Guess guess = GuessOf(proposer, prompt);
  EXPECT_EQ(guess.tokens, (Tokens{30, 31, 32, 33})) << "not what followed 1 2 in the prompt";
  EXPECT_EQ(guess.source, GuessSource::kPrediction);
  Tokens outputs = {30, 31, 32};
  EXPECT_EQ(GuessOf(proposer, prompt, outputs).tokens, (Tokens{33, 34, 35})) << "up to its end";
  outputs.insert(outputs.end(), {9, 34});
  guess = GuessOf(proposer, prompt, outputs);
  EXPECT_EQ(guess.tokens, Tokens{35}) << "after a difference";
  EXPECT_EQ(guess.source, GuessSource::kPrediction);
  outputs.insert(outputs.end(), {35, 40});
  EXPECT_TRUE(GuessOf(proposer, prompt, outputs).tokens.empty());
}

TEST(ProposerTest, SourceIsWhereTheTokensAreCopiedFrom) {
  const Tokens prompt = {1, 2, 3}, prediction = {4, 5, 6};
  Proposer proposer(2, prompt, prediction);
  EXPECT_EQ(GuessOf(proposer, prompt, {9, 1}).source, GuessSource::kPrompt);
  EXPECT_EQ(GuessOf(proposer, prompt, {9, 1, 7, 9}).source, GuessSource::kOutput);
  Proposer other(2, {prompt});
  EXPECT_EQ(GuessOf(other, prompt, {9, 1}).source, GuessSource::kPrompt);
}

// A new proposer reads the same text at once.
TEST(ProposerTest, GuessesDoNotDependOnTheCallsBefore) {
  std::mt19937_64 random(1);
  const auto draw = [&](int count) {
    Tokens tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 9);
    return tokens;
  };
  const Tokens prompt = draw(200), prediction = draw(100), text = draw(200);
  Proposer proposer(5, prompt, prediction);
  for (size_t size = 0; size <= text.size(); ++size) {
    const Tokens outputs(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    Proposer fresh(5, prompt, prediction);
    ASSERT_EQ(GuessOf(proposer, prompt, outputs).tokens, GuessOf(fresh, prompt, outputs).tokens);
  }
}

TEST(ProposerTest, LongerMatchesAreMoreLikelyAndLaterTokensLess) {
  double before = 0;
  for (const int length : {1, 2, 3, 4, 8, 16}) {
    Tokens text;
    for (int i = 0; i < 40; ++i) text.push_back(i);
    for (int i = 0; i < length; ++i) text.push_back(i);
    const Guess guess = FirstGuess(text);
    ASSERT_EQ(guess.chances.size(), 4u);
    EXPECT_GT(guess.chances[0], before) << length;
    EXPECT_TRUE(std::ranges::is_sorted(guess.chances, std::greater()));
    before = guess.chances[0];
  }
}

TEST(ProposerTest, ChanceIsTheShareOfOccurrencesThatWentOnLikeThat) {
  // 1 2 3 is followed by 4 5 three times and by 4 6 once, at last.
  const Tokens text = {1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2,
                       3, 4, 5, 0, 1, 2, 3, 4, 6, 9, 1, 2, 3};
  const Guess guess = FirstGuess(text, 2);
  EXPECT_EQ(guess.tokens, (Tokens{4, 6}));
  EXPECT_DOUBLE_EQ(guess.chances[1], guess.chances[0] * guess.chances[0] / 4);
}

TEST(ProposerTest, ChancesFollowWhatWasRightLately) {
  const Tokens text(40, 7);
  Proposer proposer(4);
  const double at_first = GuessOf(proposer, text).chances[0];
  for (int i = 0; i < 8; ++i) proposer.Learn(GuessSource::kPrompt, 4, 4);
  const double when_right = GuessOf(proposer, text).chances[0];
  EXPECT_GT(when_right, at_first);
  EXPECT_GT(when_right, 0.98);
  for (int i = 0; i < 40; ++i) proposer.Learn(GuessSource::kPrompt, 4, 1);
  const double when_wrong = GuessOf(proposer, text).chances[0];
  EXPECT_NEAR(when_wrong, 0.65, 0.1) << "one of two tokens tried, and 33 of 33 before";
  for (int i = 0; i < 2000; ++i) proposer.Propose(text, {}, 4);
  EXPECT_NEAR(GuessOf(proposer, text).chances[0], at_first, 0.01) << "long ago";
}

TEST(ProposerTest, WrongGuessesPauseAndRightOnesResume) {
  const Tokens text(40, 7);
  Proposer proposer(4);
  proposer.Read(text, {}, kEnough);
  const auto calls_until_it_proposes = [&] {
    int calls = 1;
    while (proposer.Propose(text, {}, 4).tokens.empty()) ++calls;
    return calls;
  };
  EXPECT_EQ(calls_until_it_proposes(), 1);
  int before = 1;
  for (int i = 0; i < 4; ++i) {
    proposer.Learn(GuessSource::kPrompt, 1, 0);
    const int calls = calls_until_it_proposes();
    EXPECT_GT(calls, before);
    before = calls;
  }
  for (int i = 0; i < 4; ++i) {
    proposer.Learn(GuessSource::kPrompt, 1, 1);
    EXPECT_EQ(calls_until_it_proposes(), 1);
  }
}

TEST(ProposerTest, LongMatchesAreGuessedFromWhileShortOnesPause) {
  Tokens text;
  for (int i = 0; i < 40; ++i) text.push_back(i);
  const Tokens short_match = {5}, long_match = {6, 7, 8, 9, 10, 11, 12, 13};
  Proposer proposer(4);
  proposer.Read(text, short_match, kEnough);
  for (int num_wrong = 0; num_wrong < 3;) {
    if (proposer.Propose(text, short_match, 4).tokens.empty()) continue;
    proposer.Learn(GuessSource::kPrompt, 1, 0);
    ++num_wrong;
  }
  EXPECT_TRUE(proposer.Propose(text, short_match, 4).tokens.empty());
  Tokens outputs = short_match;
  outputs.insert(outputs.end(), long_match.begin(), long_match.end());
  proposer.Read(text, outputs, kEnough);
  EXPECT_EQ(proposer.Propose(text, outputs, 4).tokens, (Tokens{14, 15, 16, 17}));
}

}  // namespace
}  // namespace diffserve
