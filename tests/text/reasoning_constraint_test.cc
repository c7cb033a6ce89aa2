// SPDX-License-Identifier: Apache-2.0
#include "engine/text/reasoning_constraint.h"

#include <gtest/gtest.h>

#include "engine/text/grammar.h"
#include "tests/testing/text_fixture.h"

namespace diffserve {
namespace {

constexpr char kReasoningEnd[] = "</think>";

class ReasoningConstraintTest : public ::testing::Test {
 protected:
  ReasoningConstraintTest()
      : tokenizer_(LoadTokenizerFixture("byte_bpe")), vocab_size_(tokenizer_->vocab_size() + 5) {
    while (!tokenizer_->IsSpecial(eos_)) ++eos_;
    marker_ = TextMarker::Make(*tokenizer_, kReasoningEnd, vocab_size_, {eos_}).value();
  }

  // Rules for an answer whose prompt has opened the reasoning.
  ReasoningRules Rules(int max_tokens) const { return {nullptr, marker_, max_tokens}; }
  std::unique_ptr<TokenConstraint> Answer(const char* choices) {
    if (compiler_ == nullptr)
      compiler_ = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}).value();
    return compiler_->Compile({GrammarSpec::Kind::kChoice, choices, "guided_choice"}).value();
  }
  std::vector<int32_t> Allowed(TokenConstraint& constraint) const {
    std::vector<uint32_t> mask(MaskWords(vocab_size_), 0xAAAAAAAAu);
    EXPECT_TRUE(constraint.Fill(mask).ok());
    std::vector<int32_t> tokens;
    for (int32_t id = 0; id < static_cast<int32_t>(mask.size() * 32); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) tokens.push_back(id);
    }
    return tokens;
  }
  bool IsAllowed(TokenConstraint& constraint, int32_t token) const {
    const std::vector<int32_t> allowed = Allowed(constraint);
    return std::ranges::find(allowed, token) != allowed.end();
  }
  std::vector<int32_t> Ids(const std::string& text) const {
    return tokenizer_->Encode(text, false).value();
  }
  static void AcceptAll(TokenConstraint& constraint, const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) ASSERT_TRUE(constraint.Accept(token).ok()) << token;
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
  const int vocab_size_;
  int32_t eos_ = 0;
  std::shared_ptr<const TextMarker> marker_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(ReasoningConstraintTest, EverythingExceptTheEndMayComeBeforeTheMarker) {
  const auto constraint = MakeReasoningConstraint(Rules(-1), Answer(R"(["yes"])"));
  EXPECT_FALSE(IsAllowed(*constraint, eos_));
  EXPECT_EQ(Allowed(*constraint).size(),
            static_cast<size_t>(vocab_size_) - 1 - marker_->Overshooting(0).size());
  EXPECT_FALSE(constraint->Accept(eos_).ok());
  EXPECT_FALSE(constraint->Accept(vocab_size_).ok());
}

TEST_F(ReasoningConstraintTest, GrammarBeginsAfterTheMarkerInEverySpelling) {
  std::vector<std::vector<int32_t>> spellings = {Ids("I think " + std::string(kReasoningEnd))};
  std::vector<int32_t> bytes = Ids("hm </thi");
  for (const char c : std::string(kReasoningEnd)) {
    const auto id = Ids(std::string(1, c));
    bytes.insert(bytes.end(), id.begin(), id.end());
  }
  spellings.push_back(bytes);
  for (const std::vector<int32_t>& spelling : spellings) {
    const auto constraint = MakeReasoningConstraint(Rules(-1), Answer(R"(["yes"])"));
    AcceptAll(*constraint, spelling);
    EXPECT_LE(Allowed(*constraint).size(), 3u);  // y, ye, yes
    AcceptAll(*constraint, Ids("yes"));
    EXPECT_TRUE(IsAllowed(*constraint, eos_));
  }
}

TEST_F(ReasoningConstraintTest, NoTokenSpansTheMarkersEnd) {
  for (size_t matched = 0; matched < marker_->size(); ++matched) {
    for (const int32_t token : marker_->Overshooting(matched)) {
      const std::string text = std::string(kReasoningEnd).substr(0, matched) +
                               tokenizer_->TokenBytes(token);
      const size_t end = text.find(kReasoningEnd) + marker_->size();
      EXPECT_LT(end, text.size());
    }
  }
}

TEST_F(ReasoningConstraintTest, BudgetForcesTheMarker) {
  const std::vector<int32_t> marker = Ids(kReasoningEnd);
  for (const int budget : {0, 3}) {
    const auto constraint = MakeReasoningConstraint(Rules(budget), Answer(R"(["yes"])"));
    for (int i = 0; i < budget; ++i) AcceptAll(*constraint, Ids("x"));
    for (const int32_t token : marker) {
      EXPECT_EQ(Allowed(*constraint), std::vector<int32_t>{token});
      EXPECT_FALSE(constraint->Accept(token + 1).ok());
      AcceptAll(*constraint, {token});
    }
    EXPECT_TRUE(IsAllowed(*constraint, Ids("yes")[0]));
    EXPECT_FALSE(IsAllowed(*constraint, Ids("x")[0]));
  }
}

TEST_F(ReasoningConstraintTest, WithoutAGrammarAnythingFollows) {
  const auto constraint = MakeReasoningConstraint(Rules(1), nullptr);
  EXPECT_EQ(Allowed(*constraint).size(), static_cast<size_t>(vocab_size_));
  AcceptAll(*constraint, Ids("x"));
  EXPECT_EQ(Allowed(*constraint).size(), 1u);
  AcceptAll(*constraint, Ids(kReasoningEnd));
  EXPECT_EQ(Allowed(*constraint).size(), static_cast<size_t>(vocab_size_));
  AcceptAll(*constraint, {eos_});
}

TEST_F(ReasoningConstraintTest, CopyStaysInTheReasoning) {
  const auto constraint = MakeReasoningConstraint(Rules(9), Answer(R"(["yes"])"));
  const std::vector<int32_t> reasoning = Ids("a b");
  AcceptAll(*constraint, reasoning);
  const auto before = Allowed(*constraint);
  const auto copy = constraint->Clone();
  const std::vector<int32_t> marker = Ids(kReasoningEnd), yes = Ids("yes");
  AcceptAll(*constraint, marker);
  AcceptAll(*constraint, yes);
  EXPECT_EQ(Allowed(*copy), before);
  AcceptAll(*copy, marker);
  EXPECT_TRUE(IsAllowed(*copy, yes[0]));
}

// The model opens reasoning by itself, or does not: the budget begins after the opening marker.
TEST_F(ReasoningConstraintTest, BudgetAppliesToReasoningThatTheModelOpens) {
  const auto begin = TextMarker::Make(*tokenizer_, "<think>", vocab_size_, {eos_}).value();
  const auto constraint = MakeReasoningConstraint({begin, marker_, 2}, nullptr);
  const auto all = static_cast<size_t>(vocab_size_);
  AcceptAll(*constraint, Ids("\n<think>"));
  AcceptAll(*constraint, Ids("x"));
  EXPECT_EQ(Allowed(*constraint).size(), all);
  AcceptAll(*constraint, Ids("x"));
  EXPECT_EQ(Allowed(*constraint), std::vector<int32_t>{Ids(kReasoningEnd)[0]});
  AcceptAll(*constraint, Ids(kReasoningEnd));
  EXPECT_EQ(Allowed(*constraint).size(), all);

  const auto declines = MakeReasoningConstraint({begin, marker_, 0}, nullptr);
  AcceptAll(*declines, Ids("<thin air, and <think> is a word"));
  EXPECT_EQ(Allowed(*declines).size(), all);
}

// With a grammar, a marker that is one token may come before the answer.
TEST_F(ReasoningConstraintTest, ModelMayOpenReasoningBeforeAConstrainedAnswer) {
  const std::string text = "t";
  const int32_t opens = Ids(text)[0];
  const auto begin = TextMarker::Make(*tokenizer_, text, vocab_size_, {eos_}).value();
  ASSERT_EQ(begin->tokens().size(), 1u);
  const auto constraint = MakeReasoningConstraint({begin, marker_, 1}, Answer(R"(["yes"])"));
  EXPECT_TRUE(IsAllowed(*constraint, opens));
  EXPECT_TRUE(IsAllowed(*constraint, Ids("yes")[0]));
  EXPECT_FALSE(IsAllowed(*constraint, Ids("x")[0]));
  const auto before = Allowed(*constraint);
  const auto copy = constraint->Clone();
  AcceptAll(*constraint, {opens});
  AcceptAll(*constraint, Ids("x"));
  const std::vector<int32_t> marker = Ids(kReasoningEnd);
  AcceptAll(*constraint, marker);
  EXPECT_FALSE(IsAllowed(*constraint, opens));
  EXPECT_TRUE(IsAllowed(*constraint, Ids("yes")[0]));
  EXPECT_EQ(Allowed(*copy), before);
  EXPECT_FALSE(copy->Clone()->Accept(Ids("x")[0]).ok());
  AcceptAll(*copy, Ids("yes"));
  EXPECT_TRUE(IsAllowed(*copy, eos_));

  const auto clash = MakeReasoningConstraint({begin, marker_, 1}, Answer(R"(["two"])"));
  AcceptAll(*clash, {opens});
  EXPECT_TRUE(IsAllowed(*clash, Ids("wo")[0])) << "the answer itself begins so";
}

TEST_F(ReasoningConstraintTest, RefusesAMarkerThatCannotBeFound) {
  const auto make = [this](const std::string& text) {
    return TextMarker::Make(*tokenizer_, text, vocab_size_, {eos_}).status().code();
  };
  EXPECT_EQ(make(""), StatusCode::kInvalidArgument);
  EXPECT_EQ(make("aba"), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(std::string(65, 'a') + "b"), StatusCode::kInvalidArgument);
  const std::unique_ptr<Tokenizer> suffixes = LoadTokenizerFixture("suffix_bpe");
  EXPECT_EQ(TextMarker::Make(*suffixes, kReasoningEnd, 100, {0}).status().code(),
            StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace diffserve
