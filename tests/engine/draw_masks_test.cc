// SPDX-License-Identifier: Apache-2.0
// DrawMasks: the tokens that each draw of a step may take.
#include "engine/draw_masks.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "tests/testing/engine/fake_constraint.h"

namespace diffserve {
namespace {

using testing::FakeConstraint;
using Tokens = std::vector<int32_t>;

constexpr int kVocab = 40;

// A decode of one sequence, and everything that its plan refers to.
struct Decode {
  Decode() { request.prompt = Tokens{30, 31, 32}; }
  PlannedSequence Plan() const {
    PlannedSequence planned;
    planned.request = &request;
    planned.num_computed = static_cast<int>(request.prompt.size() + outputs.size()) - 1;
    planned.num_planned = 1 + static_cast<int>(proposed.size());
    planned.samples = planned.num_planned;
    planned.outputs = outputs;
    planned.proposed = proposed;
    planned.banned_tokens = banned;
    return planned;
  }
  FakeConstraint& Constrain(FakeConstraint::Options options) {
    options.vocab_size = kVocab;
    auto constraint = std::make_shared<FakeConstraint>(std::move(options));
    request.constraint = constraint;
    for (int32_t token : outputs) EXPECT_TRUE(constraint->Accept(token).ok());
    return *constraint;
  }
  void Allow(const Tokens& tokens) {
    std::vector<uint32_t> mask(MaskWords(kVocab), 0);
    for (int32_t token : tokens) mask[static_cast<size_t>(token / 32)] |= 1u << token % 32;
    request.allowed_tokens = std::make_shared<const std::vector<uint32_t>>(std::move(mask));
  }
  void Forbid(std::vector<Tokens> words) {
    request.bad_words = std::make_shared<const std::vector<Tokens>>(std::move(words));
  }
  Request request;
  Tokens outputs, proposed, banned;
};

class DrawMasksTest : public ::testing::Test {
 protected:
  DrawMasks::Entry Fill(const Decode& decode) {
    StepPlan plan;
    plan.sequences.push_back(decode.Plan());
    masks_.Fill(plan);
    return masks_.entries()[0];
  }
  Tokens TokensOf(int mask) {
    const size_t words = MaskWords(kVocab);
    Tokens tokens;
    for (int32_t token = 0; token < static_cast<int32_t>(32 * words); ++token) {
      if (MaskHas(masks_.words().data() + static_cast<size_t>(mask) * words, token))
        tokens.push_back(token);
    }
    return tokens;
  }
  DrawMasks masks_{kVocab};
};

Tokens AllBut(const Tokens& tokens) {
  Tokens all;
  for (int32_t token = 0; token < kVocab; ++token) {
    if (std::ranges::find(tokens, token) == tokens.end()) all.push_back(token);
  }
  return all;
}

TEST_F(DrawMasksTest, UnconstrainedSequenceHasNoMask) {
  const DrawMasks::Entry entry = Fill(Decode());
  EXPECT_EQ(entry.first, -1);
  EXPECT_EQ(entry.num_draws, 1);
  EXPECT_TRUE(entry.error.ok());
  EXPECT_TRUE(masks_.words().empty());
}

TEST_F(DrawMasksTest, MaskIntersectsConstraintAndAllowedTokens) {
  Decode decode;
  const FakeConstraint& constraint = decode.Constrain({.seed = 3, .one_of = 2});
  Tokens may_come;
  for (int32_t token = 0; token < kVocab; ++token) {
    if (constraint.MayCome(token)) may_come.push_back(token);
  }
  EXPECT_TRUE(Fill(decode).error.ok());
  EXPECT_EQ(TokensOf(0), may_come);
  const Tokens first_two(may_come.begin(), may_come.begin() + 2);
  decode.Allow(first_two);
  Fill(decode);
  EXPECT_EQ(TokensOf(0), first_two);
}

TEST_F(DrawMasksTest, LastTokenOfABadWordIsBannedAfterItsOtherTokens) {
  Decode decode;
  decode.Forbid({{7}, {5, 8}, {4, 5, 9}, {6, 5, 10}, {32, 5, 11}, {32, 4, 5, 12}});
  decode.outputs = {4, 5};
  Fill(decode);
  EXPECT_EQ(TokensOf(0), AllBut({7, 8, 9}));
  decode.outputs = {};
  Fill(decode);
  EXPECT_EQ(TokensOf(0), AllBut({7})) << "the prompt is not generated";
  decode.outputs = {4};
  decode.proposed = {5, 3};
  EXPECT_EQ(Fill(decode).num_draws, 3);
  EXPECT_EQ(TokensOf(0), AllBut({7}));
  EXPECT_EQ(TokensOf(1), AllBut({7, 8, 9}));
  EXPECT_EQ(TokensOf(2), AllBut({7}));
}

TEST_F(DrawMasksTest, CopyOfTheConstraintGoesThroughProposedTokens) {
  Decode decode;
  FakeConstraint& constraint = decode.Constrain({.seed = 5, .one_of = 2});
  const std::unique_ptr<TokenConstraint> follows = constraint.Clone();
  for (int i = 0; i < 3; ++i) {
    int32_t token = 0;
    while (!follows->Accept(token).ok()) ++token;
    decode.proposed.push_back(token);
  }
  EXPECT_EQ(Fill(decode).num_draws, 4);
  EXPECT_EQ(constraint.num_accepted(), 0);
  std::vector<uint32_t> expected(MaskWords(kVocab));
  ASSERT_TRUE(follows->Fill(expected).ok());
  const std::vector<uint32_t> last(masks_.words().end() - static_cast<ptrdiff_t>(expected.size()),
                                   masks_.words().end());
  EXPECT_EQ(last, expected);
}

TEST_F(DrawMasksTest, NothingIsDrawnAfterAForbiddenProposedToken) {
  Decode decode;
  FakeConstraint& constraint = decode.Constrain({.seed = 5, .one_of = 4});
  int32_t good = 0, bad = 0;
  while (!constraint.MayCome(good)) ++good;
  while (constraint.MayCome(bad)) ++bad;
  decode.proposed = {bad, good};
  EXPECT_EQ(Fill(decode).num_draws, 1);
  decode.proposed = {good, good};
  decode.request.sampling.stop_token_ids = {good};
  EXPECT_EQ(Fill(decode).num_draws, 1) << "it ends the sequence";
  EXPECT_EQ(constraint.num_accepted(), 0);
}

TEST_F(DrawMasksTest, ErrorAfterAProposedTokenIsLeftToTheConstraint) {
  for (const bool at_fill : {true, false}) {
    Decode decode;
    FakeConstraint& constraint = decode.Constrain({.one_of = 1,
                                                   .fill_fails_after = at_fill ? 1 : -1,
                                                   .accept_fails_after = at_fill ? -1 : 0});
    decode.proposed = {4, 5};
    const DrawMasks::Entry entry = Fill(decode);
    EXPECT_EQ(entry.num_draws, 1);
    EXPECT_TRUE(entry.error.ok());
    EXPECT_EQ(constraint.num_accepted(), 0);
  }
}

TEST_F(DrawMasksTest, ErrorNamesTheRuleThatLeavesNoToken) {
  Decode fails;
  fails.Constrain({.fill_fails_after = 0});
  const DrawMasks::Entry failed = Fill(fails);
  EXPECT_EQ(failed.error.message(), "the fake constraint has no more work");
  EXPECT_EQ(failed.num_draws, 0);

  Decode nothing;
  nothing.Constrain({.ends_after = 0});
  EXPECT_EQ(Fill(nothing).error.code(), StatusCode::kInternal);
  EXPECT_EQ(Fill(nothing).error.message(), "the constraint allows no token");

  Decode too_short;
  too_short.Constrain({.ends = {2}, .ends_after = 0});
  EXPECT_TRUE(Fill(too_short).error.ok());
  EXPECT_EQ(TokensOf(0), Tokens{2});
  too_short.request.sampling.min_tokens = 4;
  too_short.banned = {2};
  EXPECT_EQ(Fill(too_short).error.param(), "min_tokens");
  EXPECT_EQ(Fill(too_short).error.message(),
            "min_tokens is 4, but after 0 tokens the answer may only end");

  Decode elsewhere;
  elsewhere.Constrain({.ends = {2}, .ends_after = 0});
  elsewhere.Allow({3});
  EXPECT_EQ(Fill(elsewhere).error.param(), "allowed_token_ids");

  Decode bad;
  bad.Allow({3});
  bad.Forbid({{3}});
  EXPECT_EQ(Fill(bad).error.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Fill(bad).error.param(), "bad_words");
}

TEST_F(DrawMasksTest, PoolFillsTheSameMasks) {
  ThreadPool pool({.num_threads = 3, .pin = false, .spin_us = 0});
  DrawMasks parallel(kVocab, &pool);
  std::vector<Decode> decodes(20);
  StepPlan plan;
  for (size_t i = 0; i < decodes.size(); ++i) {
    if (i % 3 != 0)
      decodes[i].Constrain({.seed = i, .one_of = 3, .fill_fails_after = i == 4 ? 0 : -1});
    plan.sequences.push_back(decodes[i].Plan());
  }
  masks_.Fill(plan);
  parallel.Fill(plan);
  EXPECT_EQ(parallel.words(), masks_.words());
  for (size_t i = 0; i < decodes.size(); ++i) {
    EXPECT_EQ(parallel.entries()[i].first, masks_.entries()[i].first);
    EXPECT_EQ(parallel.entries()[i].error.ok(), i != 4);
  }
}

}  // namespace
}  // namespace diffserve
