// SPDX-License-Identifier: Apache-2.0
// Bodies of POST /v1/attention: accepted ones, refused ones, and the member that a refusal names.
#include <gtest/gtest.h>

#include <string>

#include "server/api/attention/request.h"

namespace diffserve {
namespace {

class AttentionRequestTest : public ::testing::Test {
 protected:
  Result<OpenAiAttentionRequest> Parse(const std::string& body) const {
    return ParseAttentionRequest(body, {&limits_, SamplingSpec()});
  }
  // The member that the refusal of a body with this extra member names; "" if it is accepted.
  std::string RefusedFor(const std::string& member) const {
    const Status status = Parse(R"({"text":"a",)" + member + "}").status();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << member;
    return status.param();
  }

  FrontendOptions limits_;
};

TEST_F(AttentionRequestTest, DefaultRequestAsksForAllHeadsOfTheLastToken) {
  const Result<OpenAiAttentionRequest> parsed = Parse(R"({"text":"a b"})");
  ASSERT_TRUE(parsed.ok());
  const AttentionRequest& request = parsed->attention;
  EXPECT_EQ(std::get<std::string>(request.prompt), "a b");
  EXPECT_TRUE(request.layers.empty() && request.heads.empty() && request.positions.empty());
  EXPECT_FALSE(request.top_k || request.span || parsed->float16);
}

TEST_F(AttentionRequestTest, RequestedValuesAreRead) {
  const Result<OpenAiAttentionRequest> parsed = Parse(
      R"({"tokens":[3,4],"model":"m","layers":[0,-1],"heads":[2],"positions":[-2,0],"top_k":0,)"
      R"("span":[0,1],"encoding":"float16"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const AttentionRequest& request = parsed->attention;
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompt), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.layers, (std::vector<int>{0, -1}));
  EXPECT_EQ(request.heads, std::vector<int>{2});
  EXPECT_EQ(request.positions, (std::vector<int>{-2, 0}));
  EXPECT_EQ(request.top_k, 0);
  EXPECT_EQ(request.span, std::pair(0, 1));
  EXPECT_TRUE(parsed->float16);
}

TEST_F(AttentionRequestTest, ConversationEndsWhereAnAnswerBeginsByDefault) {
  const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
  const auto opens = [&](const std::string& more) {
    const Result<OpenAiAttentionRequest> parsed = Parse("{" + messages + more + "}");
    return std::get<Conversation>(parsed->attention.prompt).add_generation_prompt;
  };
  EXPECT_TRUE(opens(""));
  EXPECT_FALSE(opens(R"(,"add_generation_prompt":false)"));
  EXPECT_FALSE(opens(R"(,"add_generation_prompt":false,"continue_final_message":true)"));
  EXPECT_EQ(Parse("{" + messages + R"(,"continue_final_message":true})").status().param(),
            "continue_final_message");
}

TEST_F(AttentionRequestTest, LayersHeadsAndPositionsMayBeTheWordAll) {
  const Result<OpenAiAttentionRequest> parsed = Parse(
      R"({"text":"a","layers":"all","heads":"all","positions":"all"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const AttentionRequest& request = parsed->attention;
  EXPECT_TRUE(request.layers.empty() && request.heads.empty() && request.positions.empty());
  EXPECT_TRUE(request.all_positions);
  EXPECT_FALSE(Parse(R"({"text":"a","positions":[1]})")->attention.all_positions);
  EXPECT_EQ(Parse(R"({"text":"a","heads":"some"})").status().message(),
            R"(heads is "some"; allowed: a list of integers, "all")");
}

TEST_F(AttentionRequestTest, ExactlyOneOfThreePromptFieldsIsAccepted) {
  EXPECT_EQ(Parse("{}").status().param(), "text");
  EXPECT_EQ(Parse(R"({"text":"a","tokens":[1]})").status().param(), "text");
  EXPECT_EQ(Parse(R"({"text":"a","tokens":[1]})").status().message(),
            "2 of tokens, text and messages are set; allowed: one of them");
}

TEST_F(AttentionRequestTest, RefusalNamesTheMember) {
  EXPECT_EQ(RefusedFor(R"("layers":[])"), "layers");
  EXPECT_EQ(RefusedFor(R"("layers":[1.5])"), "layers");
  EXPECT_EQ(RefusedFor(R"("heads":7)"), "heads");
  EXPECT_EQ(RefusedFor(R"("positions":[99999999999])"), "positions");
  EXPECT_EQ(RefusedFor(R"("positions":["last"])"), "positions");
  EXPECT_EQ(RefusedFor(R"("top_k":"all")"), "top_k");
  EXPECT_EQ(RefusedFor(R"("span":[1])"), "span");
  EXPECT_EQ(RefusedFor(R"("span":[1,2,3])"), "span");
  EXPECT_EQ(RefusedFor(R"("encoding":"float64")"), "encoding");
  EXPECT_EQ(RefusedFor(R"("layers":[0],"heads":[-1])"), "");
}

}  // namespace
}  // namespace diffserve
