// SPDX-License-Identifier: Apache-2.0
#include "engine/text/reasoning_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/text/grammar.h"
#include "engine/text/marked_constraint.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

constexpr char kReasoningEnd[] = "</think>";

// A byte-level vocabulary with tokens that cut markers as real ones do, where "\xC4\x8A" is a line
// feed and "\xC4\xA0" a space.
std::unique_ptr<Tokenizer> Vocabulary() {
  return EditedTokenizerFixture("byte_bpe", [](nlohmann::ordered_json& tokenizer) {
    auto& vocab = tokenizer["model"]["vocab"];
    int next = 0;
    for (const auto& [token, id] : vocab.items()) next = std::max(next, id.get<int>() + 1);
    for (const auto& token : tokenizer["added_tokens"])
      next = std::max(next, token["id"].get<int>() + 1);
    for (const char* piece :
         {"<th", "ink>", "think", "\xC4\xA0<", "</", ">\xC4\x8A", ">\xC4\x8A\xC4\x8A", ">y", ">x",
          ">\xC4\x8Ay", "\xC4\x8A\xC4\x8A", "es", "m</", "ink>\xC4\x8A", ">{", "<b",
          "\xC4\x8A\xC4\x8Ay", "unused"})
      if (!vocab.contains(piece)) vocab[piece] = next++;
  });
}

class ReasoningConstraintTest : public ::testing::Test {
 protected:
  ReasoningConstraintTest() : tokenizer_(Vocabulary()), vocab_size_(tokenizer_->vocab_size() + 5) {
    while (!tokenizer_->IsSpecial(eos_)) ++eos_;
    marker_ = TextMarker::Make(*tokenizer_, kReasoningEnd, vocab_size_, {eos_}).value();
    begin_ = TextMarker::Make(*tokenizer_, "<think>", vocab_size_, {eos_}).value();
  }

  // Rules for an answer whose prompt has opened the reasoning.
  ReasoningRules Rules(int max_tokens) const { return {nullptr, marker_, max_tokens}; }
  std::unique_ptr<TokenConstraint> Answer(const char* choices, const AnswerStart& start = {}) {
    if (compiler_ == nullptr)
      compiler_ = GrammarCompiler::Make(*tokenizer_, vocab_size_, {eos_}).value();
    return compiler_->Compile({GrammarSpec::Kind::kChoice, choices, "guided_choice"}, start)
        .value();
  }
  AnswerAfterReasoning After(const char* choices) {
    AnswerStart after_spaces;
    after_spaces.after_spaces = true;
    return {Answer(choices), Answer(choices, after_spaces)};
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
  // The constraint of an answer that may begin with reasoning.
  std::unique_ptr<TokenConstraint> MayReason(const char* choices, int max_tokens = -1) {
    MarkedAnswer reasoned{
        .marker = begin_,
        .answer = MakeReasoningConstraint({begin_, marker_, max_tokens}, After(choices)),
        .after_spaces = true,
        .excludes_form = max_tokens >= 0};
    return MakeMarkedConstraint(std::move(reasoned), Answer(choices));
  }
  int32_t IdOf(const std::string& text) const {
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (!tokenizer_->IsSpecial(id) && tokenizer_->TokenBytes(id) == text) return id;
    }
    ADD_FAILURE() << "no token '" << text << "'";
    return 0;
  }
  // Whether each token of these texts is allowed in turn; those before the first refused one stay
  // accepted.
  bool Takes(TokenConstraint& constraint, const std::vector<std::string>& tokens) const {
    for (const std::string& token : tokens) {
      if (!IsAllowed(constraint, IdOf(token)) || !constraint.Accept(IdOf(token)).ok()) return false;
    }
    return true;
  }
  // A text cut into any of the vocabulary's tokens that spell it.
  std::vector<int32_t> Cut(std::string_view text, std::mt19937& random) const {
    std::vector<int32_t> tokens;
    while (!text.empty()) {
      std::vector<int32_t> fitting;
      for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
        if (tokenizer_->IsSpecial(id) || tokenizer_->TokenBytes(id).empty()) continue;
        if (text.starts_with(tokenizer_->TokenBytes(id))) fitting.push_back(id);
      }
      tokens.push_back(fitting[random() % fitting.size()]);
      text.remove_prefix(tokenizer_->TokenBytes(tokens.back()).size());
    }
    return tokens;
  }
  static void AcceptAll(TokenConstraint& constraint, const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) ASSERT_TRUE(constraint.Accept(token).ok()) << token;
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
  const int vocab_size_;
  int32_t eos_ = 0;
  std::shared_ptr<const TextMarker> marker_, begin_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(ReasoningConstraintTest, EverythingExceptTheEndMayComeBeforeTheMarker) {
  const auto constraint = MakeReasoningConstraint(Rules(-1), After(R"(["yes"])"));
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
    const auto constraint = MakeReasoningConstraint(Rules(-1), After(R"(["yes"])"));
    AcceptAll(*constraint, spelling);
    for (const int32_t token : Allowed(*constraint)) {
      std::string text = tokenizer_->TokenBytes(token);
      text.erase(0, std::min(text.find_first_not_of(" \t\n\r"), text.size()));
      EXPECT_TRUE(std::string_view("yes").starts_with(text)) << text;
    }
    AcceptAll(*constraint, Ids("yes"));
    EXPECT_TRUE(IsAllowed(*constraint, eos_));
  }
}

TEST_F(ReasoningConstraintTest, NoTokenSpansTheMarkersEnd) {
  int overshooting = 0;
  for (size_t matched = 0; matched < marker_->size(); ++matched) {
    for (const int32_t token : marker_->Overshooting(matched)) {
      ++overshooting;
      const std::string text = std::string(kReasoningEnd).substr(0, matched) +
                               tokenizer_->TokenBytes(token);
      const size_t end = text.find(kReasoningEnd) + marker_->size();
      EXPECT_LT(end, text.size());
    }
  }
  EXPECT_GT(overshooting, 0);
}

TEST_F(ReasoningConstraintTest, BudgetForcesTheMarker) {
  const std::vector<int32_t> marker = Ids(kReasoningEnd);
  for (const int budget : {0, 3}) {
    const auto constraint = MakeReasoningConstraint(Rules(budget), After(R"(["yes"])"));
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
  const auto constraint = MakeReasoningConstraint(Rules(1), {});
  EXPECT_EQ(Allowed(*constraint).size(), static_cast<size_t>(vocab_size_));
  AcceptAll(*constraint, Ids("x"));
  EXPECT_EQ(Allowed(*constraint).size(), 1u);
  AcceptAll(*constraint, Ids(kReasoningEnd));
  EXPECT_EQ(Allowed(*constraint).size(), static_cast<size_t>(vocab_size_));
  AcceptAll(*constraint, {eos_});
}

TEST_F(ReasoningConstraintTest, CopyStaysInTheReasoning) {
  const auto constraint = MakeReasoningConstraint(Rules(9), After(R"(["yes"])"));
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
  const auto constraint = MakeReasoningConstraint({begin, marker_, 2}, {});
  const auto all = static_cast<size_t>(vocab_size_);
  AcceptAll(*constraint, Ids("\n<think>"));
  AcceptAll(*constraint, Ids("x"));
  EXPECT_EQ(Allowed(*constraint).size(), all);
  AcceptAll(*constraint, Ids("x"));
  EXPECT_EQ(Allowed(*constraint), std::vector<int32_t>{Ids(kReasoningEnd)[0]});
  AcceptAll(*constraint, Ids(kReasoningEnd));
  EXPECT_EQ(Allowed(*constraint).size(), all);

  const auto declines = MakeReasoningConstraint({begin, marker_, 0}, {});
  AcceptAll(*declines, Ids("<thin air, and <think> is a word"));
  EXPECT_EQ(Allowed(*declines).size(), all);
}

TEST_F(ReasoningConstraintTest, MarkerMayEndWithinAToken) {
  for (const auto& [tokens, next] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"m</", "think", ">\n\n"}, "y"},
           {{"</", "think", ">\n", "\n\n", "\n"}, "y"},
           {{"</", "t", "h", "ink>\n"}, "y"},
           {{"</", "think", ">", " "}, "y"},
           {{"</", "think", ">\n", "\n\ny"}, "es"},
           {{"</", "think", ">y"}, "es"},
           {{"</", "think", ">\ny"}, "es"}}) {
    const auto constraint = MakeReasoningConstraint(Rules(-1), After(R"(["yes"])"));
    EXPECT_TRUE(Takes(*constraint, tokens)) << ::testing::PrintToString(tokens);
    EXPECT_FALSE(IsAllowed(*constraint, IdOf("x")));
    EXPECT_FALSE(IsAllowed(*constraint, eos_));
    EXPECT_TRUE(Takes(*constraint, {next}));
  }
  const auto constraint = MakeReasoningConstraint(Rules(-1), After(R"(["yes"])"));
  EXPECT_TRUE(Takes(*constraint, {">x", "</", "think"}));
  EXPECT_FALSE(IsAllowed(*constraint, IdOf(">x")));
  EXPECT_FALSE(constraint->Accept(IdOf(">{")).ok());
}

TEST_F(ReasoningConstraintTest, WhitespaceAfterTheMarkerIsLimited) {
  const auto constraint = MakeReasoningConstraint(Rules(-1), After(R"(["yes", " no"])"));
  AcceptAll(*constraint, Ids(kReasoningEnd));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Takes(*constraint, {"\n\n"}));
  EXPECT_FALSE(IsAllowed(*constraint, IdOf("\n")));
  EXPECT_TRUE(IsAllowed(*constraint, IdOf("y")));
  EXPECT_TRUE(Takes(*constraint, {" "}));
  EXPECT_FALSE(IsAllowed(*constraint, IdOf("y"))) << "the space was the answer's";
}

TEST_F(ReasoningConstraintTest, BudgetCompletesAMarkerThatHasBegun) {
  for (size_t begun = 0; begun < marker_->size(); ++begun) {
    const auto constraint = MakeReasoningConstraint(Rules(static_cast<int>(begun) + 1),
                                                    After(R"(["yes"])"));
    std::string text = "x" + std::string(kReasoningEnd).substr(0, begun);
    for (const char c : text) AcceptAll(*constraint, {IdOf(std::string(1, c))});
    while (!text.ends_with(kReasoningEnd)) {
      const std::vector<int32_t> allowed = Allowed(*constraint);
      ASSERT_EQ(allowed.size(), 1u) << text;
      EXPECT_EQ(constraint->Forced(1), allowed);
      text += tokenizer_->TokenBytes(allowed.front());
      AcceptAll(*constraint, allowed);
      ASSERT_LE(text.size(), 9u) << text;
    }
    EXPECT_EQ(text, "x</think>");
    EXPECT_TRUE(Takes(*constraint, {"y", "es"}));
  }
}

TEST_F(ReasoningConstraintTest, ModelMayOpenReasoningInSeveralTokens) {
  const std::vector<std::vector<std::string>> openings = {
      {"<", "think", ">"},   {"<th", "ink>"},
      {"<th", "ink>\n"},     {"\n", " <", "think", ">\n\n"},
      {" <", "think", ">x"}, {"<", "t", "h", "ink>\n"}};
  for (const auto& opening : openings) {
    for (const int budget : {-1, 5}) {
      const auto constraint = MayReason(R"(["yes", "<b>", "<tt>"])", budget);
      EXPECT_TRUE(Takes(*constraint, opening)) << ::testing::PrintToString(opening);
      EXPECT_TRUE(Takes(*constraint->Clone(), {"x", "<", "b"}));
      EXPECT_FALSE(IsAllowed(*constraint, eos_));
      EXPECT_TRUE(Takes(*constraint, {"<b", "</", "think", ">\n"}));
      EXPECT_FALSE(IsAllowed(*constraint, IdOf("x")));
      EXPECT_TRUE(Takes(*constraint, {"<b", ">"}));
      EXPECT_TRUE(IsAllowed(*constraint, eos_));
    }
  }
}

TEST_F(ReasoningConstraintTest, AnswerMayBeginLikeTheMarker) {
  const auto constraint = MayReason(R"(["yes", "<b>", "<tt>"])");
  for (const auto& answer : std::vector<std::vector<std::string>>{
           {"y", "es"}, {"<b", ">"}, {"<", "b", ">"}, {"<", "t", "t", ">"}}) {
    const auto copy = constraint->Clone();
    EXPECT_TRUE(Takes(*copy, answer)) << ::testing::PrintToString(answer);
    EXPECT_EQ(Allowed(*copy), std::vector<int32_t>{eos_});
  }
  EXPECT_FALSE(Takes(*constraint->Clone(), {"<", "x"}));
  EXPECT_FALSE(constraint->Clone()->Accept(IdOf("x")).ok());
  EXPECT_TRUE(Takes(*constraint->Clone(), {"\n", "y"})) << "the space belongs to neither";
  EXPECT_FALSE(Takes(*constraint->Clone(), {"\n", "x"}));
}

// A form that describes the reasoning itself holds for all of the answer, unless there is a budget.
TEST_F(ReasoningConstraintTest, AnswerMayContainTheMarkers) {
  const char* choices = R"(["<think>x</think>y"])";
  const auto whole = MayReason(choices);
  EXPECT_TRUE(Takes(*whole, {"<th", "ink>", "x", "</", "think", ">y"}));
  EXPECT_TRUE(IsAllowed(*whole, eos_));
  EXPECT_FALSE(Takes(*MayReason(choices, 1), {"<th", "ink>", "x", "</", "think", ">y"}));
}

TEST_F(ReasoningConstraintTest, EveryCutOfAnAnswerIsAccepted) {
  std::mt19937 random(7);
  const std::vector<std::string> reasonings = {"",
                                               "<think>",
                                               "<think>\n",
                                               "\n<think>hm</thi <b>",
                                               "<think>a</think <</",
                                               " <think></thin\n"};
  for (int round = 0; round < 400; ++round) {
    const std::string begun = reasonings[random() % reasonings.size()];
    const bool reasons = !begun.empty();
    const std::string spaces = reasons && random() % 2 == 0 ? "\n\n" : "";
    const std::string answer = random() % 2 == 0 ? "<b>" : "yes";
    const std::string text = begun + (reasons ? kReasoningEnd : "") + spaces + answer;
    const auto constraint = MayReason(R"(["yes", "<b>"])");
    for (const int32_t token : Cut(text, random)) {
      ASSERT_TRUE(IsAllowed(*constraint, token)) << text << " at " << tokenizer_->TokenBytes(token);
      const auto copy = constraint->Clone();
      ASSERT_TRUE(copy->Accept(token).ok());
      ASSERT_TRUE(constraint->Accept(token).ok());
      ASSERT_EQ(Allowed(*copy), Allowed(*constraint));
    }
    EXPECT_EQ(Allowed(*constraint), std::vector<int32_t>{eos_}) << text;
  }
}

// Each token that the constraint allows it also accepts, and no answer is stuck.
TEST_F(ReasoningConstraintTest, EveryAllowedTokenIsAccepted) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const int budget = static_cast<int>(random() % 8) - 1;
    const auto constraint = random() % 2 == 0
                                ? MayReason(R"(["yes", "<b>", "<th"])", budget)
                                : MakeReasoningConstraint(Rules(budget), After(R"(["yes"])"));
    std::string text;
    for (int i = 0; i < 40; ++i) {
      const std::vector<int32_t> allowed = Allowed(*constraint);
      ASSERT_FALSE(allowed.empty()) << text;
      std::vector<int32_t> likely;  // tokens of markers
      for (const int32_t token : allowed) {
        if (token < tokenizer_->vocab_size() && !tokenizer_->IsSpecial(token) &&
            std::string("<think></think>").find(tokenizer_->TokenBytes(token)) != std::string::npos)
          likely.push_back(token);
      }
      const auto& from = likely.empty() || random() % 4 == 0 ? allowed : likely;
      const int32_t token = from[random() % from.size()];
      ASSERT_TRUE(constraint->Accept(token).ok()) << text;
      if (token == eos_) break;
      text += tokenizer_->TokenBytes(token);
    }
  }
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
