// SPDX-License-Identifier: Apache-2.0
// Bodies of POST /v1/embeddings and /pooling: accepted ones, refused ones, and the member that a
// refusal names.
#include "server/api/openai/embedding_request.h"

#include <gtest/gtest.h>

#include <string>

#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

using PoolKind = HiddenStatePool::Kind;

class EmbeddingRequestTest : public ::testing::Test {
 protected:
  Result<EmbeddingRequest> Parse(const std::string& body) const {
    return ParseEmbeddingRequest(body, {&limits_, SamplingSpec()});
  }
  std::vector<Prompt> PromptsOf(const std::string& input) const {
    Result<EmbeddingRequest> parsed = Parse("{\"input\":" + input + "}");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed.ok() ? parsed->generate.prompts : std::vector<Prompt>();
  }
  // The member that a refusal names; "" if the body is accepted.
  std::string RefusedFor(const std::string& body) const {
    const Status status = Parse(body).status();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << body;
    return status.param();
  }
  std::string RefusedWith(const std::string& member) const {
    return RefusedFor(R"({"input":"a",)" + member + "}");
  }

  FrontendOptions limits_;
};

TEST_F(EmbeddingRequestTest, DefaultRequestAsksForTheMeanAsNumbers) {
  const Result<EmbeddingRequest> parsed = Parse(R"({"input":"a b"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->pooling, PoolKind::kMean);
  EXPECT_FALSE(parsed->base64 || parsed->dimensions);
  const GenerateRequest& generate = parsed->generate;
  EXPECT_EQ(generate.max_tokens, 0);
  EXPECT_EQ(generate.n, 1);
  EXPECT_FALSE(generate.add_special_tokens || generate.truncate_prompt_tokens);
}

TEST_F(EmbeddingRequestTest, RequestedValuesAreRead) {
  const Result<EmbeddingRequest> parsed = Parse(
      R"({"input":["a"],"model":"m","encoding_format":"base64","dimensions":3,"pooling":"last",)"
      R"("user":"u","add_special_tokens":false,"truncate_prompt_tokens":7,"cache_salt":"s",)"
      R"("normalize":true})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->pooling, PoolKind::kLast);
  EXPECT_TRUE(parsed->base64);
  EXPECT_EQ(parsed->dimensions, 3);
  EXPECT_EQ(parsed->generate.model, "m");
  EXPECT_EQ(parsed->generate.add_special_tokens, false);
  EXPECT_EQ(parsed->generate.truncate_prompt_tokens, 7);
  EXPECT_EQ(parsed->generate.cache_salt, "s");
}

TEST_F(EmbeddingRequestTest, InputIsTextOrIdsOrAListOfEither) {
  EXPECT_EQ(std::get<std::string>(PromptsOf(R"("a")").at(0)), "a");
  EXPECT_EQ(PromptsOf(R"(["a","b"])").size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(PromptsOf("[3,4]").at(0)), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(std::get<std::vector<int32_t>>(PromptsOf("[[3,4],[5]]").at(1)),
            std::vector<int32_t>{5});
}

TEST_F(EmbeddingRequestTest, InputOfAnotherFormOrSizeIsRefused) {
  for (const char* input :
       {"5", "{}", "[]", "[\"a\",3]", "[3,\"a\"]", "[[3],\"a\"]", "[1.5]", "[-1]"}) {
    EXPECT_EQ(RefusedFor(std::string("{\"input\":") + input + "}"), "input") << input;
  }
  std::string many = "\"a\"";
  for (size_t i = 0; i < kMaxPrompts; ++i) many += ",\"a\"";
  EXPECT_EQ(RefusedFor("{\"input\":[" + many + "]}"), "input");
  EXPECT_EQ(RefusedFor("{}"), "input");
  EXPECT_EQ(RefusedFor(R"({"input":null})"), "input");
}

TEST_F(EmbeddingRequestTest, RefusalNamesTheMember) {
  EXPECT_EQ(RefusedWith(R"("encoding_format":"float16")"), "encoding_format");
  EXPECT_EQ(RefusedWith(R"("encoding_format":3)"), "encoding_format");
  EXPECT_EQ(RefusedWith(R"("dimensions":0)"), "dimensions");
  EXPECT_EQ(RefusedWith(R"("dimensions":"3")"), "dimensions");
  EXPECT_EQ(RefusedWith(R"("pooling":"max")"), "pooling");
  EXPECT_EQ(RefusedWith(R"("add_special_tokens":1)"), "add_special_tokens");
  EXPECT_EQ(RefusedWith(R"("truncate_prompt_tokens":"all")"), "truncate_prompt_tokens");
}

TEST_F(EmbeddingRequestTest, EachPromptGetsAPoolOfTheHiddenSize) {
  Result<EmbeddingRequest> parsed = Parse(R"({"input":["a","b"],"dimensions":8})");
  ASSERT_TRUE(parsed.ok());
  const Status status = AddPools(7, &*parsed);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param(), "dimensions");
  EXPECT_TRUE(AddPools(8, &*parsed).ok());
  EXPECT_EQ(parsed->generate.pools.size(), 2u);
}

class PoolingRequestTest : public ::testing::Test {
 protected:
  Result<EmbeddingRequest> Parse(const std::string& body) const {
    return ParsePoolingRequest(body, {&limits_, SamplingSpec()});
  }
  std::string RefusedFor(const std::string& body) const { return Parse(body).status().param(); }

  FrontendOptions limits_;
};

TEST_F(PoolingRequestTest, DefaultIsEachStateAtUnitLengthAsNumbers) {
  const Result<EmbeddingRequest> parsed = Parse(R"({"input":["a","b"]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->pooling, PoolKind::kEachAtUnitLength);
  EXPECT_FALSE(parsed->base64);
  EXPECT_EQ(parsed->generate.prompts.size(), 2u);
  EXPECT_EQ(parsed->generate.max_tokens, 0);
}

TEST_F(PoolingRequestTest, WithoutActivationStatesAreKeptAsTheyAre) {
  for (const char* member : {"use_activation", "normalize"}) {
    const Result<EmbeddingRequest> parsed = Parse(
        std::string(R"({"input":"a","task":"token_embed","encoding_format":"base64",")") + member +
        R"(":false})");
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->pooling, PoolKind::kEach);
    EXPECT_TRUE(parsed->base64);
  }
}

TEST_F(PoolingRequestTest, ConversationIsAnInput) {
  const Result<EmbeddingRequest> parsed = Parse(R"({"messages":[{"role":"user","content":"a"}]})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(std::holds_alternative<Conversation>(parsed->generate.prompts.at(0)));
}

TEST_F(PoolingRequestTest, RefusalNamesTheMember) {
  EXPECT_EQ(RefusedFor("{}"), "input");
  EXPECT_EQ(RefusedFor(R"({"input":"a","messages":[{"role":"user","content":"a"}]})"), "input");
  EXPECT_EQ(RefusedFor(R"({"input":"a","task":"embed"})"), "task");
  EXPECT_EQ(RefusedFor(R"({"input":"a","encoding_format":"bytes"})"), "encoding_format");
  EXPECT_EQ(RefusedFor(R"({"input":"a","dimensions":3})"), "dimensions");
}

}  // namespace
}  // namespace diffserve
