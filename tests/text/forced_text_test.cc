// SPDX-License-Identifier: Apache-2.0
// The tokens that constraints force, which are proposed before the model draws them.
#include <algorithm>
#include <string>

#include "engine/text/marked_constraint.h"
#include "engine/text/reasoning_constraint.h"
#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

constexpr int kMany = 100;

class ForcedTextTest : public GrammarFixture {
 protected:
  static std::string TextOf(const std::vector<int32_t>& tokens) {
    std::string text;
    for (const int32_t token : tokens) text += tokenizer_->TokenBytes(token);
    return text;
  }
  static std::string ForcedAfter(TokenConstraint& constraint, const std::string& text) {
    for (const int32_t token : tokenizer_->Encode(text, false).value())
      EXPECT_TRUE(constraint.Accept(token).ok()) << text;
    return TextOf(constraint.Forced(kMany));
  }
  static std::string ForcedAfter(Kind kind, const std::string& grammar, const std::string& text) {
    return ForcedAfter(*Make(kind, grammar), text);
  }
  static std::shared_ptr<const TextMarker> MarkerOf(const std::string& text) {
    return TextMarker::Make(*tokenizer_, text, vocab_size_, {eos_}).value();
  }
};

TEST_F(ForcedTextTest, ChoicesForceWhatTheyShare) {
  const std::string choices = R"(["The answer is no.","The answer is not known."])";
  EXPECT_EQ(ForcedAfter(Kind::kChoice, choices, ""), "The answer is no");
  EXPECT_EQ(ForcedAfter(Kind::kChoice, choices, "The answer is no"), "");
  EXPECT_EQ(ForcedAfter(Kind::kChoice, choices, "The answer is not"), " known.");
  EXPECT_EQ(ForcedAfter(Kind::kRegex, "(ab)+", "ab"), "") << "the text may end";
  EXPECT_EQ(ForcedAfter(Kind::kRegex, "a b[0-9]", ""), "a b") << "a space that must come";
  EXPECT_EQ(Make(Kind::kChoice, choices)->Forced(1).size(), 1u);
  EXPECT_TRUE(Make(Kind::kChoice, choices)->Forced(0).empty());
}

TEST_F(ForcedTextTest, SchemasForceKeysQuotesAndPunctuation) {
  EXPECT_EQ(ForcedAfter(Kind::kJsonSchema, kPerson, ""), "{\"name\": \"");
  EXPECT_EQ(ForcedAfter(Kind::kJsonSchema, kPerson, "{\"name\": \"Al"), "");
  EXPECT_EQ(ForcedAfter(Kind::kJsonSchema, kPerson, "{\"name\": \"Al\""), ", \"age\":")
      << "a number may begin after the space, but not with one byte only";
  EXPECT_EQ(ForcedAfter(Kind::kJsonSchema, kPerson, "{\"name\": \"Al\", \"age\": 7, "),
            "\"kind\":");
}

TEST_F(ForcedTextTest, WhitespaceIsThatOfTheTextBefore) {
  EXPECT_EQ(ForcedAfter(Kind::kJsonSchema, kPerson, "{\"name\":\"Al\""), ",\"age\":")
      << "the first comma is like the colons";
  EXPECT_EQ(ForcedAfter(Kind::kJsonSchema, kPerson, "{\n  \"name\": \"Al\",\n  \"age\": 7,"),
            "\n  \"kind\":");
}

// The guess is a text of the grammar, and asking for it changes nothing.
TEST_F(ForcedTextTest, ForcedTokensAreAllowedAndTheStateStays) {
  int forced_tokens = 0;
  for (const auto& [kind, text] :
       {std::pair{Kind::kJsonSchema, std::string(kPerson)},
        std::pair{Kind::kChoice, std::string(R"(["one more time","one more try","two"])")},
        std::pair{Kind::kRegex, std::string("id-[0-9]{3}-end(-of-it)?")},
        std::pair{Kind::kJsonObject, std::string()}}) {
    const std::unique_ptr<TokenConstraint> whole = Make(kind, text);
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      const Walk walk = WalkOf(*whole->Clone(), seed);
      const std::unique_ptr<TokenConstraint> constraint = whole->Clone();
      for (const int32_t token : walk.tokens) {
        const std::vector<uint32_t> mask = MaskOf(*constraint->Clone());
        const std::vector<int32_t> forced = constraint->Forced(kMany);
        EXPECT_EQ(constraint->Forced(kMany), forced);
        ASSERT_EQ(MaskOf(*constraint), mask) << walk.text;
        EXPECT_EQ(constraint->Forced(kMany), forced);
        const std::unique_ptr<TokenConstraint> copy = constraint->Clone();
        for (const int32_t next : forced) ASSERT_TRUE(copy->Accept(next).ok()) << walk.text;
        ASSERT_EQ(MaskOf(*constraint), mask) << walk.text;
        forced_tokens += static_cast<int>(forced.size());
        ASSERT_TRUE(constraint->Accept(token).ok());
      }
    }
  }
  EXPECT_GT(forced_tokens, 500);
}

TEST_F(ForcedTextTest, ReasoningForcesItsMarkerAndThenTheAnswer) {
  const auto marker = MarkerOf("</think>");
  const auto constraint = MakeReasoningConstraint({nullptr, marker, 2},
                                                  {Make(Kind::kJsonSchema, kPerson)});
  EXPECT_TRUE(constraint->Forced(kMany).empty());
  const std::vector<int32_t> thought = tokenizer_->Encode("so", false).value();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(constraint->Accept(thought.front()).ok());
  EXPECT_EQ(constraint->Forced(kMany), marker->Rest(0));
  EXPECT_EQ(constraint->Forced(1).size(), 1u);
  ASSERT_TRUE(constraint->Accept(marker->Rest(0).front()).ok());
  EXPECT_EQ(constraint->Forced(kMany).size(), marker->Rest(0).size() - 1);
  for (size_t i = 1; i < marker->Rest(0).size(); ++i)
    ASSERT_TRUE(constraint->Accept(marker->Rest(0)[i]).ok());
  EXPECT_EQ(TextOf(constraint->Forced(kMany)), "{\"name\": \"");
}

TEST_F(ForcedTextTest, CallsForceNothingWhileTheModelChooses) {
  const auto constraint = MakeMarkedConstraint(
      {MarkerOf("<call>"), Make(Kind::kRegex, "<call>now[0-9]")}, Make(Kind::kRegex, "<cat>[0-9]"));
  EXPECT_EQ(ForcedAfter(*constraint->Clone(), ""), "");
  EXPECT_EQ(ForcedAfter(*constraint->Clone(), "<cat"), ">");
  EXPECT_EQ(ForcedAfter(*constraint->Clone(), "<call>"), "now");
}

}  // namespace
}  // namespace diffserve
