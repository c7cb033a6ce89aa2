#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "diffserve/v1/inference.pb.h"
#include "server/grpc/messages.h"

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
  return FromProto(message, FrontendOptions(), SamplingParams());
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

TEST(GrpcMessagesTest, WhatIsNotAskedForIsNotThere) {
  const GenerateRequest request = *Mapped(Plain());
  EXPECT_FALSE(request.grammar.has_value());
  EXPECT_EQ(request.max_reasoning_tokens, -1);
  EXPECT_TRUE(request.allowed_token_ids.empty());
  EXPECT_TRUE(request.bad_words.empty());
  EXPECT_FALSE(request.truncate_prompt_tokens.has_value());
  EXPECT_EQ(request.priority, 0);
}

TEST(GrpcMessagesTest, RulesForTokensAreHandedOn) {
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

TEST(GrpcMessagesTest, ANegativeLimitOfReasoningIsRefused) {
  v1::GenerateRequest message = Plain();
  message.set_max_reasoning_tokens(-1);
  EXPECT_EQ(Refused(message).param(), "max_reasoning_tokens");
}

TEST(GrpcMessagesTest, EachKindOfGrammarIsMappedUnderItsName) {
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

TEST(GrpcMessagesTest, AGrammarThatSaysNothingOrTooMuchIsRefused) {
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
  chat.set_tools_json(R"([{"type": "function"}])");
  const GenerateRequest request = *Mapped(message);
  const auto& prompt = std::get<ChatPrompt>(request.prompts.front());
  EXPECT_EQ(prompt.messages_json,
            R"([{"role":"user","content":"hi","name":"Ann"},)"
            R"({"role":"assistant","content":"","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"look","arguments":{"at": "sky"}}},)"
            R"({"type":"function","function":{"name":"wait","arguments":{}}}]},)"
            R"({"role":"tool","content":"blue","tool_call_id":"c1"}])");
  EXPECT_EQ(prompt.tools_json, R"([{"type": "function"}])");
}

TEST(GrpcMessagesTest, ACallThatIsNoneIsRefusedByItsPlace) {
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
  for (const char* const arguments : {"[]", "{", "{}}", "{},{}", "7"}) {
    EXPECT_EQ(param_of("assistant",
                       [&](auto& m) {
                         m.add_tool_calls()->set_name("f");
                         m.mutable_tool_calls(0)->set_arguments(arguments);
                       }),
              "messages[0].tool_calls[0].arguments")
        << arguments;
  }
  EXPECT_EQ(param_of("tool", [](auto&) {}), "messages[0].tool_call_id");
  EXPECT_EQ(param_of("user", [](auto& m) { m.set_tool_call_id("c1"); }),
            "messages[0].tool_call_id");
  EXPECT_EQ(param_of("user", [](auto& m) { m.set_name(std::string(257, 'n')); }),
            "messages[0].name");
}

TEST(GrpcMessagesTest, ToolsThatAreNoListOfObjectsAreRefused) {
  const auto param_of = [](const std::string& tools) {
    v1::GenerateRequest message = Chat("user");
    message.mutable_chat()->set_tools_json(tools);
    return Refused(message).param();
  };
  for (const char* const tools : {"{}", "[7]", "[", "null", "[],\"x\":1", "hello"})
    EXPECT_EQ(param_of(tools), "tools_json") << tools;
  std::string many = "[{}";
  for (size_t i = 0; i < FrontendOptions().max_tools; ++i) many += ",{}";
  EXPECT_EQ(param_of(many + "]"), "tools_json");
  EXPECT_EQ(param_of("[" + std::string(FrontendOptions().max_tools_bytes, ' ') + "]"),
            "tools_json");
}

}  // namespace
}  // namespace diffserve
