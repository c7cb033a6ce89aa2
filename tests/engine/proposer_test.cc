// SPDX-License-Identifier: Apache-2.0
#include "engine/proposer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace diffserve {
namespace {

using Tokens = std::vector<int32_t>;

// The proposal of a new Proposer for the prompt.
Tokens Propose(const Tokens& prompt, int max_tokens = 4, int limit = 100) {
  return Proposer(max_tokens).Propose({prompt, {}}, limit);
}

TEST(ProposerTest, ProposesWhatFollowedTheLongestEarlierRun) {
  EXPECT_EQ(Propose({1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4}), (Tokens{5, 6, 7, 8}));
  EXPECT_EQ(Propose({1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 1, 2, 3, 4}, 2), (Tokens{5, 6}))
      << "a run of four tokens wins over a nearer one of three";
  EXPECT_EQ(Propose({1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 4}, 1), (Tokens{8}))
      << "the latest occurrence of the same run";
}

TEST(ProposerTest, ShortRunsGiveShortProposals) {
  EXPECT_EQ(Propose({1, 2, 3, 4, 5, 6, 9, 1, 2, 3}), (Tokens{4, 5, 6}));
  EXPECT_EQ(Propose({1, 2, 3, 4, 5, 6, 9, 1}), Tokens());
  EXPECT_EQ(Propose({1, 2, 3, 4, 5, 6, 9, 9}), Tokens());
  EXPECT_EQ(Propose({1}), Tokens());
  const Tokens two_alike = {1, 2, 3, 4, 5, 6, 9, 1, 2};
  EXPECT_EQ(Propose(two_alike), Tokens());
  Proposer proposer(4);
  proposer.Learn(1, 1);
  EXPECT_EQ(proposer.Propose({two_alike, {}}, 4), (Tokens{3, 4})) << "when one has been right";
}

TEST(ProposerTest, RepetitionContinuesBeyondTheText) {
  EXPECT_EQ(Propose({7, 7, 7, 7, 7}, 6), (Tokens{7, 7, 7, 7, 7, 7}));
  EXPECT_EQ(Propose({1, 2, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
}

TEST(ProposerTest, ProposalIsLimited) {
  const Tokens text = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4};
  EXPECT_EQ(Propose(text, 4, 2), (Tokens{5, 6}));
  EXPECT_EQ(Propose(text, 4, 0), Tokens());
  EXPECT_EQ(Propose(text, 4, -1), Tokens());
}

TEST(ProposerTest, RunsSpanPromptAndOutput) {
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 1}, outputs = {2, 3, 4};
  EXPECT_EQ(Proposer(2).Propose({prompt, outputs}, 2), (Tokens{5, 6}));
}

TEST(ProposerTest, WrongProposalsPauseAndRightOnesResume) {
  const Tokens text(40, 7);
  Proposer proposer(4);
  const auto calls_until_it_proposes = [&] {
    int calls = 1;
    while (proposer.Propose({text, {}}, 4).empty()) ++calls;
    return calls;
  };
  EXPECT_EQ(calls_until_it_proposes(), 1);
  int before = 1;
  for (int i = 0; i < 4; ++i) {
    proposer.Learn(1, 0);
    const int calls = calls_until_it_proposes();
    EXPECT_GT(calls, before);
    before = calls;
  }
  for (int i = 0; i < 4; ++i) {
    proposer.Learn(1, 1);
    EXPECT_EQ(calls_until_it_proposes(), 1);
  }
  EXPECT_EQ(proposer.Propose({text, {}}, 4).size(), 4u);
  proposer.Learn(4, 2);
  EXPECT_EQ(proposer.Propose({text, {}}, 4).size(), 2u) << "as many as were right";
}

// A reference without tables: finds the latest earlier occurrence of the run by reading the whole
// text.
Tokens ProposeByReading(const Tokens& text, int max_tokens) {
  const int size = static_cast<int>(text.size());
  for (int run = std::min(4, size); run >= 3; --run) {
    for (int end = size - 1; end >= run; --end) {
      if (!std::equal(text.end() - run, text.end(), text.begin() + end - run)) continue;
      Tokens proposed;
      for (int i = 0; i < (run < 4 ? std::min(run, max_tokens) : max_tokens); ++i) {
        const auto from = static_cast<size_t>(end + i);
        proposed.push_back(from < text.size() ? text[from] : proposed[from - text.size()]);
      }
      return proposed;
    }
  }
  return {};
}

TEST(ProposerTest, ProposalsEqualThoseOfASearchOfTheWholeText) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t vocab = 2 + random() % 40;
    const size_t prompt_size = random() % 300;
    Tokens text;
    Proposer proposer(6);
    for (int i = 0; i < 900; ++i) {
      text.push_back(static_cast<int32_t>(random() % vocab));
      if (text.size() <= prompt_size) continue;
      const std::span<const int32_t> all = text;
      const Tokens proposed = proposer.Propose({all.first(prompt_size), all.subspan(prompt_size)},
                                               6);
      ASSERT_EQ(proposed, ProposeByReading(text, 6)) << "seed=" << seed << " size=" << text.size();
    }
  }
}

}  // namespace
}  // namespace diffserve
