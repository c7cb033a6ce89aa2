// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "diffserve/v1/inference.pb.h"
#include "server/api/grpc/diffserve/messages.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest Plain() {
  v1::GenerateRequest message;
  message.set_text("hi");
  return message;
}

Result<GenerateRequest> Mapped(const v1::GenerateRequest& message) {
  Result<AnswerRequest> mapped = FromProto(message, FrontendOptions(), SamplingSpec());
  if (!mapped.ok()) return mapped.status();
  return std::move(mapped->generate);
}

Status Refused(const v1::GenerateRequest& message) {
  const Result<GenerateRequest> mapped = Mapped(message);
  EXPECT_FALSE(mapped.ok());
  EXPECT_EQ(mapped.status().code(), StatusCode::kInvalidArgument);
  return mapped.status();
}

v1::GenerateRequest Chat(const std::string& role) {
  v1::GenerateRequest message;
  v1::ChatMessage& first = *message.mutable_chat()->add_messages();
  first.set_role(role);
  first.set_content("hi");
  return message;
}

TEST(GrpcMessagesTest, UnrequestedFieldsAreAbsent) {
  const GenerateRequest request = *Mapped(Plain());
  EXPECT_FALSE(request.grammar.has_value());
  EXPECT_EQ(request.max_reasoning_tokens, -1);
  EXPECT_TRUE(request.allowed_token_ids.empty());
  EXPECT_TRUE(request.bad_words.empty());
  EXPECT_FALSE(request.truncate_prompt_tokens.has_value());
  EXPECT_EQ(request.priority, 0);
}

TEST(GrpcMessagesTest, TokenRulesArePassedOn) {
  v1::GenerateRequest message = Plain();
  message.set_max_reasoning_tokens(0);
  message.add_allowed_token_ids(7);
  message.add_allowed_token_ids(9);
  message.add_bad_words("no");
  message.set_truncate_prompt_tokens(-1);
  message.set_priority(-3);
  const GenerateRequest request = *Mapped(message);
  EXPECT_EQ(request.max_reasoning_tokens, 0);
  EXPECT_THAT(request.allowed_token_ids, ElementsAre(7, 9));
  EXPECT_THAT(request.bad_words, ElementsAre("no"));
  EXPECT_EQ(request.truncate_prompt_tokens, -1);
  EXPECT_EQ(request.priority, -3);
}

TEST(GrpcMessagesTest, NegativeReasoningLimitIsRefused) {
  v1::GenerateRequest message = Plain();
  message.set_max_reasoning_tokens(-1);
  EXPECT_EQ(Refused(message).param(), "max_reasoning_tokens");
}

TEST(GrpcMessagesTest, EachGrammarKindIsMapped) {
  using Kind = GrammarSpec::Kind;
  const auto spec_of = [](const auto& set) {
    v1::GenerateRequest message = Plain();
    set(*message.mutable_grammar());
    const GenerateRequest request = *Mapped(message);
    EXPECT_TRUE(request.grammar.has_value());
    return *request.grammar;
  };
  const auto expect = [](const GrammarSpec& spec, Kind kind, const std::string& text,
                         const std::string& param) {
    EXPECT_EQ(spec.kind, kind) << param;
    EXPECT_EQ(spec.text, text) << param;
    EXPECT_EQ(spec.param, param);
  };
  expect(spec_of([](v1::Grammar& g) { g.set_json_object(true); }), Kind::kJsonObject, "",
         "json_object");
  expect(spec_of([](v1::Grammar& g) { g.set_json_schema("{}"); }), Kind::kJsonSchema, "{}",
         "json_schema");
  expect(spec_of([](v1::Grammar& g) { g.set_regex("a+"); }), Kind::kRegex, "a+", "regex");
  expect(spec_of([](v1::Grammar& g) {
           g.mutable_choice()->add_texts("a\"b");
           g.mutable_choice()->add_texts("");
         }),
         Kind::kChoice, R"(["a\"b",""])", "choice");
  expect(spec_of([](v1::Grammar& g) { g.set_lark("start: x"); }), Kind::kLark, "start: x", "lark");
  expect(spec_of([](v1::Grammar& g) { g.set_ebnf("root ::= x"); }), Kind::kEbnf, "root ::= x",
         "ebnf");
  expect(spec_of([](v1::Grammar& g) { g.set_structural_tag("{}"); }), Kind::kStructuralTag, "{}",
         "structural_tag");
}

TEST(GrpcMessagesTest, EmptyOrTooLargeGrammarIsRefused) {
  v1::GenerateRequest message = Plain();
  message.mutable_grammar();
  EXPECT_EQ(Refused(message).param(), "grammar");
  message.mutable_grammar()->mutable_choice();
  EXPECT_EQ(Refused(message).param(), "choice");
  message.mutable_grammar()->set_regex(std::string(FrontendOptions().grammar.max_text_bytes, 'a'));
  EXPECT_TRUE(Mapped(message).ok());
  message.mutable_grammar()->mutable_regex()->push_back('a');
  EXPECT_EQ(Refused(message).param(), "regex");
  EXPECT_THAT(Refused(message).message(), HasSubstr("262144"));
  message.mutable_grammar()->set_json_object(false);
  EXPECT_FALSE(Mapped(message)->grammar.has_value());
}

TEST(GrpcMessagesTest, MessagesHaveTheFormThatTemplatesExpect) {
  v1::GenerateRequest message = Chat("user");
  v1::Chat& chat = *message.mutable_chat();
  chat.mutable_messages(0)->set_name("Ann");
  v1::ChatMessage& assistant = *chat.add_messages();
  assistant.set_role("assistant");
  v1::ToolCall& call = *assistant.add_tool_calls();
  call.set_id("c1");
  call.set_name("look");
  call.set_arguments(R"({"at": "sky"})");
  assistant.add_tool_calls()->set_name("wait");
  v1::ChatMessage& tool = *chat.add_messages();
  tool.set_role("tool");
  tool.set_tool_call_id("c1");
  tool.set_content("blue");
  chat.set_tools_json(R"([{"type": "function", "function": {"name": "look"}}])");
  message.mutable_tool_choice()->set_mode(v1::ToolChoice::NONE);
  const GenerateRequest request = *Mapped(message);
  const auto& prompt = std::get<Conversation>(request.prompts.front());
  EXPECT_EQ(TemplateJsonOf(prompt).messages,
            R"([{"role":"user","content":"hi","name":"Ann"},)"
            R"({"role":"assistant","content":"","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"look","arguments":{"at": "sky"}}},)"
            R"({"type":"function","function":{"name":"wait","arguments":{}}}]},)"
            R"({"role":"tool","content":"blue","tool_call_id":"c1"}])");
  const std::string tools = R"([{"type":"function","function":{"name":"look","parameters":)"
                            R"({"type":"object","properties":{}}}}])";
  EXPECT_EQ(TemplateJsonOf(prompt).tools, tools);
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_chat() = chat;
  const Result<Prompt> same = FromProto(tokenize);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(TemplateJsonOf(std::get<Conversation>(*same)).tools, tools);
  EXPECT_EQ(TemplateJsonOf(std::get<Conversation>(*same)).messages,
            TemplateJsonOf(prompt).messages);
}

TEST(GrpcMessagesTest, InvalidCallIsRefusedWithItsPath) {
  const auto param_of = [](const std::string& role, const auto& set) {
    v1::GenerateRequest message = Chat(role);
    set(*message.mutable_chat()->mutable_messages(0));
    return Refused(message).param();
  };
  EXPECT_EQ(param_of("user", [](auto& m) { m.add_tool_calls()->set_name("f"); }),
            "messages[0].tool_calls");
  EXPECT_EQ(param_of("assistant", [](auto& m) { m.add_tool_calls(); }),
            "messages[0].tool_calls[0].name");
  EXPECT_EQ(
      param_of("assistant", [](auto& m) { m.add_tool_calls()->set_name(std::string(257, 'f')); }),
      "messages[0].tool_calls[0].name");
  EXPECT_EQ(param_of("tool", [](auto&) {}), "messages[0].tool_call_id");
  EXPECT_EQ(param_of("user", [](auto& m) { m.set_tool_call_id("c1"); }),
            "messages[0].tool_call_id");
  EXPECT_EQ(param_of("user", [](auto& m) { m.set_name(std::string(257, 'n')); }),
            "messages[0].name");
}

TEST(GrpcMessagesTest, NonObjectArgumentsBecomeAnObjectForTheTemplate) {
  v1::GenerateRequest message = Chat("assistant");
  v1::ToolCall& call = *message.mutable_chat()->mutable_messages(0)->add_tool_calls();
  call.set_name("f");
  call.set_arguments("{\"a\": \"cut");
  const Result<GenerateRequest> request = Mapped(message);
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_NE(TemplateJsonOf(std::get<Conversation>(request->prompts.front()))
                .messages.find(R"("arguments":{"INVALID_JSON":"{\"a\": \"cut"})"),
            std::string::npos);
}

TEST(GrpcMessagesTest, ToolsMustBeAListOfObjects) {
  const auto param_of = [](const std::string& tools) {
    v1::GenerateRequest message = Chat("user");
    message.mutable_chat()->set_tools_json(tools);
    return Refused(message).param();
  };
  for (const char* const tools : {"{}", "[", "null", "[],\"x\":1", "hello"})
    EXPECT_EQ(param_of(tools), "tools_json") << tools;
  EXPECT_EQ(param_of("[7]"), "tools_json[0]");
  EXPECT_EQ(param_of(R"([{"type":"function"}])"), "tools_json[0].function");
  std::string many = "[{}";
  for (size_t i = 0; i < kMaxTools; ++i) many += ",{}";
  EXPECT_EQ(param_of(many + "]"), "tools_json");
  EXPECT_EQ(param_of("[" + std::string(kMaxToolsBytes, ' ') + "]"), "tools_json");
}

constexpr char kCityTools[] =
    R"([{"type":"function","function":{"name":"get_weather","parameters":)"
    R"({"type":"object","properties":{"city":{"type":"string"}}}}}])";

class ToolsOverGrpcTest : public ::testing::Test {
 protected:
  ToolsOverGrpcTest() { message_.mutable_chat()->set_tools_json(kCityTools); }

  Result<AnswerRequest> Mapped() const { return FromProto(message_, limits_, SamplingSpec()); }
  std::string RefusedFor() const {
    const Result<AnswerRequest> mapped = Mapped();
    EXPECT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.status().code(), StatusCode::kInvalidArgument);
    return mapped.status().param();
  }

  FrontendOptions limits_;
  v1::GenerateRequest message_ = Chat("user");
};

TEST_F(ToolsOverGrpcTest, AutoIsTheDefaultAndNeedsAParser) {
  EXPECT_EQ(RefusedFor(), "tool_choice");
  message_.mutable_tool_choice()->set_mode(v1::ToolChoice::AUTO);
  EXPECT_EQ(RefusedFor(), "tool_choice");
  limits_.formats.tools = FindToolFormat("hermes");
  const Result<AnswerRequest> mapped = Mapped();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(mapped->answer.tools, limits_.formats.tools);
  EXPECT_TRUE(mapped->answer.parallel);
  message_.mutable_tool_choice()->set_parallel(false);
  EXPECT_FALSE(Mapped()->answer.parallel);
}

TEST_F(ToolsOverGrpcTest, NoneKeepsTheToolsInThePrompt) {
  message_.mutable_tool_choice()->set_mode(v1::ToolChoice::NONE);
  const Result<AnswerRequest> mapped = Mapped();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_FALSE(mapped->answer.parses());
  EXPECT_THAT(TemplateJsonOf(std::get<Conversation>(mapped->generate.prompts.front())).tools,
              HasSubstr("get_weather"));
}

TEST_F(ToolsOverGrpcTest, RequiredCallIsConstrained) {
  message_.mutable_tool_choice()->set_function("get_weather");
  const Result<AnswerRequest> named = Mapped();
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named->answer.forced_name, "get_weather");
  EXPECT_EQ(named->generate.grammar->kind, GrammarSpec::Kind::kJsonSchema);
  message_.mutable_tool_choice()->set_mode(v1::ToolChoice::REQUIRED);
  const Result<AnswerRequest> required = Mapped();
  ASSERT_TRUE(required.ok()) << required.status().message();
  EXPECT_TRUE(required->answer.forced_call);
  EXPECT_EQ(required->generate.grammar->kind, GrammarSpec::Kind::kLark);
}

TEST_F(ToolsOverGrpcTest, InvalidToolChoiceIsRefused) {
  message_.mutable_tool_choice()->set_function("get_time\"}");
  EXPECT_EQ(RefusedFor(), "tool_choice");
  message_.mutable_tool_choice()->set_mode(static_cast<v1::ToolChoice::Mode>(7));
  EXPECT_EQ(RefusedFor(), "tool_choice.mode");
  message_.mutable_tool_choice()->set_mode(v1::ToolChoice::REQUIRED);
  message_.mutable_chat()->clear_tools_json();
  EXPECT_EQ(RefusedFor(), "tool_choice");
  message_.set_text("no chat");
  EXPECT_EQ(RefusedFor(), "tool_choice");
  message_.clear_tool_choice();
  message_.set_include_reasoning(false);
  EXPECT_EQ(RefusedFor(), "include_reasoning");
  message_.clear_include_reasoning();
  message_.set_reasoning_effort("low");
  EXPECT_EQ(RefusedFor(), "reasoning_effort");
}

TEST_F(ToolsOverGrpcTest, ReasoningBudgetIsReadIfMarkersAreKnown) {
  message_.mutable_chat()->clear_tools_json();
  EXPECT_EQ(Mapped()->generate.reasoning, nullptr);
  limits_.formats.reasoning = FindReasoningFormat("deepseek_r1");
  message_.set_max_reasoning_tokens(9);
  message_.set_include_reasoning(false);
  const Result<AnswerRequest> mapped = Mapped();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(mapped->generate.reasoning, limits_.formats.reasoning);
  EXPECT_EQ(mapped->generate.max_reasoning_tokens, 9);
  EXPECT_EQ(mapped->answer.reasoning, limits_.formats.reasoning);
  EXPECT_FALSE(mapped->include_reasoning);
}

TEST(GrpcMessagesTest, EmbeddingInputsAndPoolingAreRead) {
  v1::EmbedRequest message;
  message.add_inputs()->set_text("a");
  message.add_inputs()->mutable_token_ids()->add_ids(7);
  message.set_pooling(v1::POOLING_LAST);
  message.set_dimensions(3);
  message.set_add_special_tokens(false);
  message.set_truncate_prompt_tokens(-1);
  message.set_cache_salt("s");
  const Result<EmbeddingRequest> request = FromProto(message, SamplingSpec());
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(std::get<std::string>(request->generate.prompts.at(0)), "a");
  EXPECT_THAT(std::get<std::vector<int32_t>>(request->generate.prompts.at(1)), ElementsAre(7));
  EXPECT_EQ(request->pooling, HiddenStatePool::Kind::kLast);
  EXPECT_EQ(request->dimensions, 3);
  EXPECT_EQ(request->generate.add_special_tokens, false);
  EXPECT_EQ(request->generate.truncate_prompt_tokens, -1);
  EXPECT_EQ(request->generate.max_tokens, 0);
  EXPECT_EQ(request->generate.cache_salt, "s");
}

TEST(GrpcMessagesTest, InvalidEmbeddingRequestIsRefusedByName) {
  v1::EmbedRequest message;
  message.add_inputs();
  EXPECT_EQ(FromProto(message, SamplingSpec()).status().param(), "inputs[0]");
  message.mutable_inputs(0)->set_text("a");
  message.set_dimensions(0);
  EXPECT_EQ(FromProto(message, SamplingSpec()).status().param(), "dimensions");
  message.clear_dimensions();
  message.set_pooling(static_cast<v1::Pooling>(9));
  EXPECT_EQ(FromProto(message, SamplingSpec()).status().param(), "pooling");
}

}  // namespace
}  // namespace diffserve
