// SPDX-License-Identifier: Apache-2.0
// allowed_token_ids, bad_words and truncation: from a request to the engine's rules.
#include "server/serving/request/token_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using testing::ServingFixture;

using Ids = std::vector<int32_t>;

Ids Count(int tokens) {
  Ids ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 10);
  return ids;
}

TEST(TokenRulesTest, AllowedTokensAreBitsOfAMask) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadTokenizerFixture("byte_bpe");
  GenerateRequest request;
  request.allowed_token_ids = {0, 31, 32, 33, 33};
  const Result<TokenRules> rules = MakeTokenRules(request, *tokenizer, 70);
  ASSERT_TRUE(rules.ok());
  EXPECT_THAT(*rules->allowed, ElementsAre(0x80000001u, 3u, 0u));
  EXPECT_EQ(rules->bad_words, nullptr);
  EXPECT_EQ(MakeTokenRules({}, *tokenizer, 70)->allowed, nullptr);
}

TEST(TokenRulesTest, BadWordIsFoundAtTheBeginningAndAfterASpace) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadTokenizerFixture("byte_bpe");
  const auto encoded = [&](const char* text) { return tokenizer->Encode(text, false).value(); };
  GenerateRequest request;
  request.bad_words = {"the", "  hello", " ", "the"};
  const Result<TokenRules> rules = MakeTokenRules(request, *tokenizer, tokenizer->vocab_size());
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  for (const char* text : {"the", " the", "hello", " hello", " "})
    EXPECT_THAT(*rules->bad_words, Contains(encoded(text))) << text;
  EXPECT_EQ(rules->bad_words->size(), 5u) << "each once";
}

TEST(TokenRulesTest, BadWordIsFoundWithAndWithoutSentencePiecesSpace) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadTokenizerFixture("sentencepiece");
  GenerateRequest request;
  request.bad_words = {"quick"};
  const Result<TokenRules> rules = MakeTokenRules(request, *tokenizer, tokenizer->vocab_size());
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  std::set<std::string> texts;
  for (const Ids& ids : *rules->bad_words) {
    std::string text;
    for (const int32_t id : ids) text += tokenizer->TokenBytes(id);
    texts.insert(text);
  }
  EXPECT_THAT(texts, IsSupersetOf({"quick", " quick"}));
}

TEST(TokenRulesTest, BadWordBeyondTheModelsVocabularyIsRefused) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadTokenizerFixture("byte_bpe");
  GenerateRequest request;
  request.bad_words = {"the"};
  const Result<TokenRules> rules = MakeTokenRules(request, *tokenizer, 1);
  EXPECT_EQ(rules.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rules.status().param(), "bad_words");
}

TEST(TokenRulesTest, PromptKeepsItsLastOrFirstTokens) {
  GenerateRequest request;
  EXPECT_EQ(Truncated(Count(9), request, 4).size(), 9u) << "nothing was asked for";
  request.truncate_prompt_tokens = 3;
  EXPECT_THAT(Truncated(Count(9), request, 100).ids(), ElementsAre(16, 17, 18));
  EXPECT_EQ(Truncated(Count(3), request, 100).size(), 3u);
  request.truncate_right = true;
  EXPECT_THAT(Truncated(Count(9), request, 100).ids(), ElementsAre(10, 11, 12));
}

TEST(TokenRulesTest, MinusOneKeepsTheRemainingContext) {
  GenerateRequest request;
  request.truncate_prompt_tokens = -1;
  EXPECT_EQ(Truncated(Count(50), request, 20).size(), 19u) << "one token can follow";
  request.max_tokens_default = 8;
  EXPECT_EQ(Truncated(Count(50), request, 20).size(), 12u);
  request.max_tokens = 15;
  EXPECT_EQ(Truncated(Count(50), request, 20).size(), 5u);
  request.max_tokens = 0;
  EXPECT_EQ(Truncated(Count(50), request, 20).size(), 20u);
  request.max_tokens = 20;
  EXPECT_EQ(Truncated(Count(50), request, 20).size(), 1u) << "a prompt is never empty";
}

// The rules for the engine.
Result<TokenizedRequest> Rendered(ServingFixture& server, GenerateRequest request) {
  std::promise<Result<TokenizedRequest>> promise;
  const Status status = server.frontend->Render(
      std::move(request),
      [&promise](Result<TokenizedRequest> made) { promise.set_value(std::move(made)); });
  return status.ok() ? promise.get_future().get() : Result<TokenizedRequest>(status);
}

TEST(TokenRulesTest, AllContinuationsOfARequestShareItsRules) {
  ServingFixture server;
  GenerateRequest request;
  request.prompts = {Ids{70, 71}, Ids{72}};
  request.n = 2;
  request.max_tokens = 1;
  request.allowed_token_ids = {70};
  request.bad_words = {"x"};
  request.priority = -7;
  const Result<TokenizedRequest> made = Rendered(server, request);
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(made->continuations.size(), 4u);
  for (const Request& continuation : made->continuations) {
    EXPECT_EQ(continuation.allowed_tokens, made->continuations[0].allowed_tokens);
    EXPECT_EQ(continuation.bad_words, made->continuations[0].bad_words);
    EXPECT_NE(continuation.allowed_tokens, nullptr);
    EXPECT_NE(continuation.bad_words, nullptr);
    EXPECT_EQ(continuation.priority, -7);
  }
}

TEST(TokenRulesTest, TooLongPromptIsTruncatedToTheContext) {
  ServingFixture server;
  GenerateRequest request;
  request.max_tokens = 12;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i) + " ";
  for (const Prompt& prompt : {Prompt(text), Prompt(Ids(2000, 70))}) {
    request.prompts = {prompt};
    request.truncate_prompt_tokens.reset();
    EXPECT_EQ(Rendered(server, request).status().param(), "prompt");
    request.truncate_prompt_tokens = -1;
    request.want_prompt_text = true;
    const Result<TokenizedRequest> made = Rendered(server, request);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->prompts[0].token_ids.size(), 500u);
    EXPECT_EQ(made->continuations[0].prompt.size(), 500u);
    EXPECT_EQ(made->prompts[0].text,
              server.tokenizer->Decode(made->prompts[0].token_ids, true).value())
        << "an echo shows what is left";
  }
  request.truncate_prompt_tokens = 510;
  EXPECT_EQ(Rendered(server, request).status().param(), "max_tokens");
}

TEST(TokenRulesTest, RenderingRunsNothingAndChecksAsGenerateDoes) {
  ServingFixture server;
  GenerateRequest request;
  request.prompts = {Ids{70, 71}};
  request.model = "another";
  EXPECT_EQ(Rendered(server, request).status().code(), StatusCode::kNotFound);
  request.model.clear();
  EXPECT_TRUE(Rendered(server, request).ok());
  EXPECT_EQ(server.Stats().steps, 0u);
}

}  // namespace
}  // namespace diffserve
