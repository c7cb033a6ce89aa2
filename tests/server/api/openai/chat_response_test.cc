// SPDX-License-Identifier: Apache-2.0
// Chat responses with calls of tools and reasoning, whole and streamed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/openai/encoder.h"
#include "server/serving/tools/tool_format.h"
#include "tests/testing/server/encoder_events.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;

class ChatResponseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    request_.chat = true;
    request_.answer.tools = FindToolFormat("hermes");
    request_.answer.reasoning = FindReasoningFormat("deepseek_r1");
  }
  // One token per piece.
  std::string Run(const std::vector<std::string>& pieces,
                  FinishReason finish = FinishReason::kStop) {
    PromptInfo prompt{SharedTokens{10}, ""};
    if (request_.answer.reasoning != nullptr) prompt.reasoning = ReasoningStart::kOpen;
    std::vector<ResponseEvent> events = {ResponseStarted{{prompt}}};
    for (size_t i = 0; i < pieces.size(); ++i) {
      ResponseDelta delta;
      delta.text = pieces[i];
      const bool last = i + 1 == pieces.size();
      delta.tokens = {
          {.token = last && request_.hides_eos ? kEos : static_cast<int32_t>(i), .logprob = -1}};
      if (last) delta.finish = finish;
      events.push_back(std::move(delta));
    }
    events.push_back(ResponseDone{{}, {1, static_cast<int64_t>(pieces.size()), 0}});
    const TokenBytes bytes = [&](int32_t id) {
      return id == kEos ? std::string("<|end|>") : pieces.at(static_cast<size_t>(id));
    };
    const TokenTexts texts = {bytes, bytes, [](int32_t id) { return id == kEos; }};
    return testing::EncodedText(
        [&] {
          return std::make_unique<OpenAiResponse>(
              request_, OpenAiIdentity{"chatcmpl-1", "tiny", "fp", 123}, texts);
        },
        events);
  }
  std::vector<Json> Stream(const std::vector<std::string>& pieces) {
    request_.stream = true;
    std::vector<Json> chunks;
    for (const std::string& data : testing::SseData(Run(pieces))) {
      if (data != "[DONE]") chunks.push_back(Json::parse(data));
    }
    return chunks;
  }

  static constexpr int32_t kEos = 99;
  const std::vector<std::string> call_ = {"Hm",
                                          ".",
                                          "</think>",
                                          "\n",
                                          "<tool_call>",
                                          "{\"name\": \"f\"",
                                          ", \"arguments\": {\"a",
                                          "\":",
                                          "1",
                                          "}}",
                                          "</tool_call>"};
  OpenAiRequest request_;
};

TEST_F(ChatResponseTest, MessageHasItsReasoningAndItsCalls) {
  const Json body = Json::parse(Run(call_));
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& message = choice["message"];
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  EXPECT_EQ(message["reasoning"], "Hm.");
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  const Json& call = message["tool_calls"][0];
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], Json::parse(R"({"name":"f","arguments":"{\"a\":1}"})"));
  EXPECT_FALSE(call.contains("index"));
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

TEST_F(ChatResponseTest, StreamSendsTheNameAndThenTheArguments) {
  request_.logprobs = true;
  const std::vector<Json> chunks = Stream(call_);
  std::string reasoning, content, arguments, name, id;
  size_t tokens = 0;
  for (const Json& chunk : chunks) {
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    if (delta.contains("reasoning_content")) reasoning += delta["reasoning_content"];
    if (delta.contains("content")) content += delta["content"];
    if (choice["logprobs"].is_object()) tokens += choice["logprobs"]["content"].size();
    if (!delta.contains("tool_calls")) continue;
    for (const Json& call : delta["tool_calls"]) {
      EXPECT_EQ(call["index"], 0);
      if (call.contains("id")) {
        EXPECT_EQ(id, "");
        id = call["id"];
        name = call["function"]["name"];
        EXPECT_EQ(call["type"], "function");
        EXPECT_EQ(arguments, "");
      }
      arguments += call["function"]["arguments"];
    }
  }
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(content, "");
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, "{\"a\":1}");
  EXPECT_TRUE(id.starts_with("call_"));
  EXPECT_EQ(tokens, call_.size());
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(chunks.front()["choices"][0]["delta"],
            Json::parse(R"({"role":"assistant","content":""})"));
}

TEST_F(ChatResponseTest, CutCallFinishesWithLength) {
  const std::vector<std::string> cut(call_.begin(), call_.begin() + 8);
  const Json choice = Json::parse(Run(cut, FinishReason::kLength))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":");
}

TEST_F(ChatResponseTest, ReasoningIsOmittedOnRequest) {
  request_.include_reasoning = false;
  const Json message = Json::parse(Run({"Hm", "</think>", "Yes"}))["choices"][0]["message"];
  EXPECT_EQ(message, Json::parse(R"({"role":"assistant","content":"Yes","refusal":null})"));
}

TEST_F(ChatResponseTest, EndTokenIsNotContent) {
  request_.hides_eos = true;
  // The model writes the end token's name as text before it samples the token.
  const std::vector<std::string> pieces = {"</think>", "Yes<", "|end|><|end|>"};
  const Json body = Json::parse(Run(pieces));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Yes<|end|>");
  std::string streamed;
  for (const Json& chunk : Stream(pieces))
    streamed += chunk["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(streamed, "Yes<|end|>");
}

TEST_F(ChatResponseTest, CallsOfMistralHaveShortIds) {
  request_.answer.tools = FindToolFormat("mistral");
  request_.answer.reasoning = nullptr;
  const Json message = Json::parse(
      Run({"[TOOL_CALLS]", "[{\"name\":\"f\"}, {\"name\":\"g\"}]"}))["choices"][0]["message"];
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
}

}  // namespace
}  // namespace diffserve
