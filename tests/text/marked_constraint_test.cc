// SPDX-License-Identifier: Apache-2.0
#include "engine/text/marked_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/text/grammar.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

constexpr char kMarker[] = "<tool_call>";

class MarkedConstraintTest : public ::testing::Test {
 protected:
  MarkedConstraintTest()
      : tokenizer_(LoadTokenizerFixture("byte_bpe")), vocab_size_(tokenizer_->vocab_size() + 5) {
    while (!tokenizer_->IsSpecial(eos_)) ++eos_;
    compiler_ = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}).value();
    marker_ = TextMarker::Make(*tokenizer_, kMarker, vocab_size_, {eos_}).value();
  }

  std::unique_ptr<TokenConstraint> Choice(const char* choices) {
    return compiler_->Compile({GrammarSpec::Kind::kChoice, choices, "choice"}).value();
  }
  std::unique_ptr<TokenConstraint> Form(const char* choices, const char* calls = nullptr) {
    return MakeMarkedConstraint({marker_, calls == nullptr ? nullptr : Choice(calls)},
                                Choice(choices));
  }
  bool IsAllowed(TokenConstraint& constraint, int32_t token) const {
    std::vector<uint32_t> mask(MaskWords(vocab_size_), 0xAAAAAAAAu);
    return constraint.Fill(mask).ok() && MaskHas(mask.data(), token);
  }
  std::vector<int32_t> Ids(const std::string& text) const {
    return tokenizer_->Encode(text, false).value();
  }
  // Whether the constraint accepts the whole text; the accepted part stays accepted.
  bool Takes(TokenConstraint& constraint, const std::string& text) const {
    for (const int32_t token : Ids(text)) {
      if (!IsAllowed(constraint, token) || !constraint.Accept(token).ok()) return false;
    }
    return true;
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
  const int vocab_size_;
  int32_t eos_ = 0;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::shared_ptr<const TextMarker> marker_;
};

TEST_F(MarkedConstraintTest, AnswerIsTheFormOrCalls) {
  const auto form = Form(R"(["yes"])");
  EXPECT_TRUE(Takes(*form, "yes"));
  EXPECT_TRUE(IsAllowed(*form, eos_));
  const auto calls = Form(R"(["yes"])");
  EXPECT_TRUE(Takes(*calls, "<tool_call>anything <b> at all"));
  EXPECT_TRUE(IsAllowed(*calls, eos_));
  for (const char* other : {"no", "<tool_yes", " <tool_call>", "\n", "yes<tool_call>"})
    EXPECT_FALSE(Takes(*Form(R"(["yes"])"), other)) << other;
  EXPECT_FALSE(IsAllowed(*Form(R"(["yes"])"), eos_));
}

TEST_F(MarkedConstraintTest, CallsKeepToTheirOwnGrammar) {
  const char* calls = R"(["<tool_call>f</tool_call>"])";
  EXPECT_TRUE(Takes(*Form(R"(["yes"])", calls), "<tool_call>f</tool_call>"));
  EXPECT_TRUE(Takes(*Form(R"(["yes"])", calls), "yes"));
  EXPECT_FALSE(Takes(*Form(R"(["yes"])", calls), "<tool_call>g"));
}

TEST_F(MarkedConstraintTest, FormThatBeginsLikeACallIsStillAccepted) {
  const char* form = R"(["<tool>", "<tool_call_of_old>"])";
  for (const char* text : {"<tool>", "<tool_call_of_old>", "<tool_call>f"})
    EXPECT_TRUE(Takes(*Form(form), text)) << text;
  EXPECT_FALSE(Takes(*Form(form), "<tool_calls"));
}

TEST_F(MarkedConstraintTest, TokensOfACopyMayComeAgain) {
  std::mt19937 random(5);
  const std::vector<std::string> texts = {"<tool>", "<tool_call>f</tool_call>", "<tool_call_x>"};
  const auto constraint = Form(R"(["<tool>", "<tool_call_x>"])", R"(["<tool_call>f</tool_call>"])");
  for (int round = 0; round < 50; ++round) {
    const std::vector<int32_t> ids = Ids(texts[random() % texts.size()]);
    const size_t count = 1 + random() % ids.size();
    const auto copy = constraint->Clone();
    for (size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(IsAllowed(*copy, ids[i]));
      ASSERT_TRUE(copy->Accept(ids[i]).ok());
    }
    EXPECT_EQ(IsAllowed(*copy->Clone(), eos_), count == ids.size());
  }
}

TEST_F(MarkedConstraintTest, LittleWhitespaceIsNeitherTheFormNorTheMarker) {
  const auto form = [this] {
    return MakeMarkedConstraint({.marker = marker_, .after_spaces = true}, Choice(R"(["yes"])"));
  };
  EXPECT_TRUE(Takes(*form(), "\n\nyes"));
  EXPECT_TRUE(Takes(*form(), "\n<tool_call>anything"));
  EXPECT_FALSE(Takes(*form(), "\nno"));
  const auto constraint = form();
  const int32_t space = Ids("\n")[0];
  int taken = 0;
  for (; IsAllowed(*constraint, space); ++taken) ASSERT_TRUE(constraint->Accept(space).ok());
  EXPECT_EQ(taken, 20);
  EXPECT_FALSE(constraint->Clone()->Accept(space).ok());
  EXPECT_TRUE(Takes(*constraint, "yes"));
}

TEST_F(MarkedConstraintTest, ForbiddenTokenIsRefused) {
  const auto constraint = Form(R"(["yes"])");
  EXPECT_FALSE(constraint->Accept(Ids("x")[0]).ok());
  EXPECT_TRUE(Takes(*constraint, "yes"));
}

}  // namespace
}  // namespace diffserve
