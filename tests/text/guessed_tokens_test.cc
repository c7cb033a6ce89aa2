// SPDX-License-Identifier: Apache-2.0
// Grammars at their work limits: an answer ends at the same token with the same error, whatever
// tokens are proposed for it.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/draw_masks.h"
#include "tests/testing/text/grammar_fixture.h"

namespace diffserve {
namespace {

using TokenIds = std::vector<int32_t>;

struct Answer {
  TokenIds tokens;
  std::string error;
};

class GuessedTokensTest : public GrammarFixture {
 protected:
  static TokenIds Ids(const std::string& text) { return tokenizer_->Encode(text, false).value(); }

  // The tokens of `answer`, with the guesses that `guess(i)` gives for token i and later.
  template <typename Guesses>
  static Answer Decode(const TokenConstraint& grammar, const TokenIds& answer,
                       const Guesses& guess) {
    Request request;
    request.prompt = TokenIds{1};
    request.max_tokens = 1 << 20;
    request.constraint = grammar.Clone();
    DrawMasks masks(vocab_size_);
    Answer made;
    while (made.tokens.size() < answer.size()) {
      const size_t at = made.tokens.size();
      const TokenIds proposed = guess(at);
      PlannedSequence planned;
      planned.request = &request;
      planned.num_computed = static_cast<int>(at);
      planned.num_planned = planned.samples = 1 + static_cast<int>(proposed.size());
      planned.outputs = made.tokens;
      planned.proposed = proposed;
      StepPlan plan;
      plan.sequences.push_back(planned);
      masks.Fill(plan);
      const DrawMasks::Entry& entry = masks.entries()[0];
      if (!entry.error.ok()) {
        made.error = entry.error.message();
        return made;
      }
      for (int draw = 0; draw < entry.num_draws && made.tokens.size() < answer.size(); ++draw) {
        const int32_t token = answer[made.tokens.size()];
        made.tokens.push_back(token);
        if (const Status status = request.constraint->Accept(token); !status.ok()) {
          made.error = status.message();
          return made;
        }
        if (draw == static_cast<int>(proposed.size()) ||
            proposed[static_cast<size_t>(draw)] != token)
          break;
      }
    }
    return made;
  }
};

// Its masks meet more and more states of the expression, until there are too many.
constexpr char kManyStates[] = "(.*a.{40}){40}";

TEST_F(GuessedTokensTest, AnswerEndsAtTheSameTokenWithGuesses) {
  const auto grammar = Make(Kind::kRegex, kManyStates);
  ASSERT_NE(grammar, nullptr);
  std::mt19937_64 random(3);
  TokenIds answer;
  const TokenIds letters = Ids("abcdefghijklmnop");
  for (int i = 0; i < 1000; ++i) answer.push_back(letters[random() % letters.size()]);
  const auto none = [](size_t) { return TokenIds(); };
  const Answer alone = Decode(*grammar, answer, none);
  ASSERT_LT(alone.tokens.size(), answer.size());
  EXPECT_THAT(alone.error, ::testing::HasSubstr("too many states"));
  for (const size_t right : {0, 3}) {
    const Answer guessed = Decode(*grammar, answer, [&](size_t at) {
      const size_t end = std::min(at + right, answer.size());
      TokenIds proposed(answer.begin() + static_cast<ptrdiff_t>(at),
                        answer.begin() + static_cast<ptrdiff_t>(end));
      for (const int32_t wrong : Ids("bcde")) proposed.push_back(wrong);
      return proposed;
    });
    EXPECT_EQ(guessed.tokens.size(), alone.tokens.size()) << right;
    EXPECT_EQ(guessed.error, alone.error);
  }
}

}  // namespace
}  // namespace diffserve
