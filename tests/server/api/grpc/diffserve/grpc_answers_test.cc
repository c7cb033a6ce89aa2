// SPDX-License-Identifier: Apache-2.0
// The parts of a chat's answer over gRPC: text, reasoning and tool calls; and vectors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/serving/tools/tool_format.h"
#include "tests/testing/server/grpc_stack.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

using testing::Eventually;
using testing::Generate;
using testing::Generated;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using testing::HttpClient;
using Json = nlohmann::json;

constexpr char kWeather[] =
    R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",)"
    R"("additionalProperties":false,"required":["unit"],)"
    R"("properties":{"unit":{"type":"string","enum":["C","F"]}}}}}])";

GrpcStackOptions WithTemplate() {
  GrpcStackOptions options;
  options.with_template = true;
  options.config.hidden_size = 8;
  options.config.eos_token_ids = {1};
  options.executor.vocab_size = testing::kWholeVocab;
  return options;
}

v1::GenerateRequest ChatOf(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content(text);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

struct Call {
  std::string id, name, arguments;
};

// The calls of one choice, joined from their pieces.
std::vector<Call> CallsOf(const Generated& result, int choice) {
  std::vector<Call> calls;
  for (const v1::GenerateResponse& message : result.messages) {
    if (!message.has_delta() || message.delta().choice() != choice) continue;
    for (const v1::ToolCallDelta& piece : message.delta().tool_calls()) {
      const auto index = static_cast<size_t>(piece.index());
      if (index == calls.size())
        calls.push_back({piece.id(), piece.name(), ""});
      else
        EXPECT_TRUE(piece.id().empty() && piece.name().empty()) << "told with the first piece";
      calls.at(index).arguments += piece.arguments();
    }
  }
  return calls;
}

std::string ReasoningOf(const Generated& result) {
  std::string text;
  for (const v1::GenerateResponse& message : result.messages) text += message.delta().reasoning();
  return text;
}

v1::FinishReason FinishOf(const Generated& result) {
  for (const v1::GenerateResponse& message : result.messages) {
    if (message.has_finish()) return message.finish().reason();
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

TEST(GrpcAnswersTest, NamedFunctionIsCalledInEveryChoice) {
  GrpcStack stack(WithTemplate());
  v1::GenerateRequest request = ChatOf("How warm is it?", 200);
  request.mutable_chat()->set_tools_json(kWeather);
  request.mutable_tool_choice()->set_function("get_weather");
  request.mutable_sampling()->set_n(2);
  const Generated result = Generate(*stack.NewStub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  std::vector<std::string> ids;
  for (const int choice : {0, 1}) {
    const std::vector<Call> calls = CallsOf(result, choice);
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].name, "get_weather");
    const std::string unit = Json::parse(calls[0].arguments).at("unit");
    EXPECT_TRUE(unit == "C" || unit == "F") << unit;
    EXPECT_EQ(result.TextOf(choice), "");
    EXPECT_FALSE(result.TokensOf(choice).empty());
    ids.push_back(calls[0].id);
  }
  EXPECT_FALSE(ids[0].empty());
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(FinishOf(result), v1::FINISH_REASON_TOOL_CALLS);
}

TEST(GrpcAnswersTest, GrpcToolCallEqualsHttp) {
  GrpcStack stack(WithTemplate());
  v1::GenerateRequest request = ChatOf("How warm is it?", 300);
  request.mutable_chat()->set_tools_json(kWeather);
  request.mutable_tool_choice()->set_mode(v1::ToolChoice::REQUIRED);
  request.mutable_tool_choice()->set_parallel(false);
  const Generated result = Generate(*stack.NewStub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  HttpClient client(stack.port());
  const Json choice =
      client
          .Post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"How warm is it?"}],"max_tokens":300,)"
                R"("temperature":0,"tool_choice":"required","parallel_tool_calls":false,"tools":)" +
                    std::string(kWeather) + "}")
          .json()["choices"][0];
  const std::vector<Call> calls = CallsOf(result, 0);
  ASSERT_EQ(calls.size(), 1u);
  const Json& function = choice["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(function["name"], calls[0].name);
  EXPECT_EQ(function["arguments"], calls[0].arguments);
}

TEST(GrpcAnswersTest, ReasoningIsSeparateAndEndsAtItsBudget) {
  GrpcStackOptions options = WithTemplate();
  options.frontend.formats.reasoning = FindReasoningFormat("think");
  GrpcStack stack(std::move(options));
  v1::GenerateRequest request = ChatOf("Why?", 40);
  request.mutable_stopping()->set_ignore_eos(true);
  request.set_max_reasoning_tokens(4);
  request.set_reasoning_effort("high");  // the template opens reasoning
  const auto stub = stack.NewStub();
  const Generated result = Generate(*stub, request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.TokensOf(0).size(), 40u);
  EXPECT_EQ(FinishOf(result), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(result.TextOf(0).find("</think>"), std::string::npos);
  EXPECT_FALSE(result.TextOf(0).empty());
  const int64_t reasoning_tokens = result.messages.back().usage().reasoning_tokens();
  EXPECT_GE(reasoning_tokens, 4);
  EXPECT_LT(reasoning_tokens, 40);

  request.set_include_reasoning(false);
  const Generated without = Generate(*stub, request);
  EXPECT_EQ(ReasoningOf(without), "");
  EXPECT_EQ(without.TextOf(0), result.TextOf(0));

  request.set_include_reasoning(true);
  request.set_reasoning_effort("low");  // the template opens none, and the model neither
  const Generated unopened = Generate(*stub, request);
  EXPECT_EQ(ReasoningOf(unopened), "");
  EXPECT_EQ(unopened.messages.back().usage().reasoning_tokens(), 0);
}

TEST(GrpcAnswersTest, TextPromptAnswerIsNotParsedAndHasNoBudget) {
  GrpcStackOptions options = WithTemplate();
  options.frontend.formats.reasoning = FindReasoningFormat("deepseek_r1");
  GrpcStack stack(std::move(options));
  v1::GenerateRequest request = testing::RequestOf({5, 6}, 10);
  const auto stub = stack.NewStub();
  const Generated result = Generate(*stub, request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.TextOf(0), *stack.tokenizer->Decode(result.TokensOf(0), true));
  EXPECT_EQ(ReasoningOf(result), "");
  request.set_max_reasoning_tokens(4);
  const Generated refused = Generate(*stub, request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.param, "max_reasoning_tokens");
}

struct Embedded {
  grpc::Status status;
  std::string param;
  v1::EmbedResponse response;
};

Embedded Embed(v1::Inference::Stub& stub, const v1::EmbedRequest& request) {
  Embedded result;
  grpc::ClientContext context;
  result.status = stub.Embed(&context, request, &result.response);
  result.param = testing::TrailerOf(context, "param");
  return result;
}

v1::EmbedRequest TextsOf(const std::vector<std::string>& texts) {
  v1::EmbedRequest request;
  for (const std::string& text : texts) request.add_inputs()->set_text(text);
  return request;
}

TEST(GrpcAnswersTest, GrpcVectorsEqualHttp) {
  GrpcStack stack(WithTemplate());
  const auto stub = stack.NewStub();
  HttpClient client(stack.port());
  for (const bool last : {false, true}) {
    v1::EmbedRequest request = TextsOf({"one", "and two"});
    if (last) request.set_pooling(v1::POOLING_LAST);
    request.set_dimensions(5);
    const Embedded result = Embed(*stub, request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    const Json body = client
                          .Post("/v1/embeddings", R"({"input":["one","and two"],"dimensions":5,)"
                                                  R"("pooling":")" +
                                                      std::string(last ? "last" : "mean") + "\"}")
                          .json();
    ASSERT_EQ(result.response.embeddings_size(), 2);
    for (int i = 0; i < 2; ++i) {
      const auto& values = result.response.embeddings(i).values();
      ASSERT_EQ(values.size(), 5);
      for (int j = 0; j < 5; ++j)
        EXPECT_EQ(values[j], body["data"][i]["embedding"][j].get<float>()) << i << " " << j;
    }
    EXPECT_EQ(result.response.usage().prompt_tokens(), body["usage"]["prompt_tokens"]);
  }
  EXPECT_TRUE(stack.EngineIsEmpty());
}

TEST(GrpcAnswersTest, InvalidEmbeddingInputIsRefusedByName) {
  GrpcStack stack(WithTemplate());
  const auto stub = stack.NewStub();
  const auto refused_for = [&](const v1::EmbedRequest& request) {
    const Embedded result = Embed(*stub, request);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return result.param;
  };
  EXPECT_EQ(refused_for({}), "inputs");
  v1::EmbedRequest request;
  request.add_inputs()->mutable_token_ids()->add_ids(1 << 30);
  EXPECT_EQ(refused_for(request), "inputs");
  request = TextsOf({"a"});
  request.set_dimensions(9);
  EXPECT_EQ(refused_for(request), "dimensions");
  request.clear_dimensions();
  request.set_request_id(std::string(129, 'i'));
  EXPECT_EQ(refused_for(request), "request_id");
  request.clear_request_id();
  request.set_model("other");
  EXPECT_EQ(Embed(*stub, request).status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(GrpcAnswersTest, EndingAnEmbeddingFreesEverything) {
  GrpcStackOptions options = WithTemplate();
  options.hold_steps = true;
  GrpcStack stack(std::move(options));
  const auto stub = stack.NewStub();
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  v1::EmbedResponse response;
  grpc::Status status;
  const auto call = stub->AsyncEmbed(&context, TextsOf({"a"}), &queue);
  call->Finish(&response, &status, nullptr);
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting + stack.Stats().running == 1; }));
  context.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(stack.BecomesIdle());
  queue.Shutdown();
}

}  // namespace
}  // namespace diffserve
