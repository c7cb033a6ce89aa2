// SPDX-License-Identifier: Apache-2.0
// Constraints of answers that continue a prompt, open a text, or begin within a character. The
// constraint applies to the text that the client gets, byte for byte.
#include <gmock/gmock.h>

#include <random>

#include "engine/text/detokenizer.h"
#include "engine/text/grammar.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using Ids = std::vector<int32_t>;

struct Constrained {
  const Tokenizer& tokenizer;
  GrammarCompiler& compiler;
  int vocab_size = 0;
  int32_t eos = 0;
  Ids prompt;
  bool skip_special_tokens = true;

  Result<std::unique_ptr<TokenConstraint>> Make(const std::string& choice) const {
    const TokenStream stream(tokenizer.table(), skip_special_tokens, prompt);
    return compiler.Compile({GrammarSpec::Kind::kChoice, nlohmann::json({choice}).dump(), "choice"},
                            {.skip_special_tokens = skip_special_tokens,
                             .opens_text = stream.at_start(),
                             .incomplete_character = stream.incomplete()});
  }
  // Random allowed tokens; empty if the vocabulary cannot continue. A copy accepts some that do not
  // come.
  std::optional<std::string> Answer(TokenConstraint& constraint, std::mt19937& random) const {
    Ids ids;
    for (int steps = 0; steps < 100; ++steps) {
      std::vector<uint32_t> mask(MaskWords(vocab_size));
      if (!constraint.Fill(mask).ok()) return std::nullopt;
      Ids allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(mask.size() * 32); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      EXPECT_LT(allowed.back(), vocab_size);
      if (random() % 4 == 0) {
        EXPECT_TRUE(constraint.Clone()->Accept(allowed[random() % allowed.size()]).ok());
      }
      const int32_t token = allowed[random() % allowed.size()];
      const Status status = constraint.Accept(token);
      EXPECT_TRUE(status.ok()) << status.message();
      ids.push_back(token);
      if (token == eos) break;
    }
    if (ids.empty() || ids.back() != eos) return std::nullopt;
    ids.pop_back();
    Detokenizer detokenizer(tokenizer, skip_special_tokens, prompt);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.Push(id);
    return text + detokenizer.Finish();
  }
};

TEST(AnswerStartTest, EachAnswerUnderAChoiceIsTheChoice) {
  std::mt19937 random(3);
  for (const auto& [form, tokenizer] : TokenizerForms()) {
    if (tokenizer->table().decoding == TokenTable::Decoding::kLibrary) continue;
    const int vocab_size = tokenizer->vocab_size() + 7;
    const int32_t eos = tokenizer->Encode("</s>", false).value().front();
    const int32_t bos = tokenizer->Encode("<s>", false).value().front();
    const auto compiler = GrammarCompiler::Make(*tokenizer, vocab_size, {eos}).value();
    for (const Ids& prompt : {tokenizer->Encode("The dog", false).value(), Ids{bos}}) {
      for (const bool skip : {true, false}) {
        const Constrained constrained{*tokenizer, *compiler, vocab_size, eos, prompt, skip};
        int answered = 0;
        for (const std::string choice : {"dog", " dog", "  dog", "the fox", "."}) {
          const auto constraint = constrained.Make(choice);
          if (!constraint.ok()) continue;  // the vocabulary cannot spell it
          for (int round = 0; round < 10; ++round) {
            const auto answer = constrained.Answer(*(*constraint)->Clone(), random);
            if (!answer) continue;
            EXPECT_EQ(*answer, choice) << form << " after " << ::testing::PrintToString(prompt);
            ++answered;
          }
        }
        EXPECT_GT(answered, 10) << form;
      }
    }
  }
}

TEST(AnswerStartTest, AnswerCompletesTheCharacterThatThePromptBegan) {
  std::mt19937 random(4);
  const auto tokenizer = LoadTokenizerFixture("sentencepiece");
  const int vocab_size = tokenizer->vocab_size();
  const auto compiler = GrammarCompiler::Make(*tokenizer, vocab_size, {2}).value();
  const Constrained constrained{*tokenizer, *compiler, vocab_size, 2, {3 + 'x', 3 + 0xC3}};
  for (const std::string choice : {"\u00E9", "\u00FCber"}) {
    const auto constraint = constrained.Make(choice);
    ASSERT_TRUE(constraint.ok()) << constraint.status().message();
    EXPECT_EQ(constrained.Answer(**constraint, random), choice);
  }
  const auto broken_off = constrained.Make("no");
  ASSERT_TRUE(broken_off.ok()) << broken_off.status().message();
  EXPECT_EQ(constrained.Answer(**broken_off, random), "\uFFFDno");
}

}  // namespace
}  // namespace diffserve
