// SPDX-License-Identifier: Apache-2.0
// Bodies of /v1/messages: the chat requests that mean the same, and the names in refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/chat_template.h"
#include "server/api/anthropic/request.h"
#include "server/api/openai/request.h"
#include "tests/testing/server/request_summary.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;

class MessagesRequestTest : public ::testing::Test {
 protected:
  MessagesRequestTest() { limits_.formats.tools = FindToolFormat("hermes"); }

  ReadContext Context() const { return {&limits_, SamplingSpec()}; }
  Result<AnswerRequest> Read(const std::string& body) const {
    return ParseMessagesRequest(body, Context());
  }
  static std::string With(const std::string& member) {
    return R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],)" + member +
           "}";
  }
  Json Summary(const std::string& body) const { return testing::ChatSummary(Read(body)); }
  Json Messages(const std::string& list) const {
    return Summary(R"({"max_tokens":9,"messages":)" + list + "}")["messages"];
  }
  // The same of a body of /v1/chat/completions.
  Json ChatSummary(const std::string& body) const {
    return testing::ChatSummary(ParseChatRequest(body, Context()));
  }
  Json ChatMessages(const std::string& list) const {
    return ChatSummary("{\"messages\":" + list + "}")["messages"];
  }
  // The member that a refusal names; "" if the body is accepted.
  std::string RefusedFor(const std::string& body) const {
    const Result<AnswerRequest> request = Read(body);
    if (request.ok()) return "";
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(request.status().message().find(request.status().param()), std::string::npos)
        << request.status().message();
    return request.status().param();
  }

  FrontendOptions limits_;
};

TEST_F(MessagesRequestTest, SystemPromptAndTextBlocksBecomeMessages) {
  const Json read = Summary(R"({"model":"m","max_tokens":9,"stream":true,
      "system":[{"type":"text","text":"Be","cache_control":{"type":"ephemeral"}},
                {"type":"text","text":"brief."}],
      "messages":[{"role":"user","content":"Hi"},
                  {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},
                                                 {"type":"text","text":"Yes?"}]},
                  {"role":"user","content":[{"type":"text","text":"Go"},
                                            {"type":"text","text":"on"}]}]})");
  EXPECT_EQ(read, ChatSummary(R"({"model":"m","max_tokens":9,"stream":true,"messages":[
      {"role":"system","content":[{"type":"text","text":"Be"},{"type":"text","text":"brief."}]},
      {"role":"user","content":"Hi"},{"role":"assistant","content":"Yes?"},
      {"role":"user","content":[{"type":"text","text":"Go"},{"type":"text","text":"on"}]}]})"));
}

TEST_F(MessagesRequestTest, ToolUseAndResultsBecomeCallsAndMessagesOfTools) {
  EXPECT_EQ(Messages(R"([{"role":"user","content":"Sum?"},
        {"role":"assistant","content":[{"type":"text","text":"Let me add."},
          {"type":"tool_use","id":"t1","name":"add","input":{"a":1}},
          {"type":"tool_use","id":"t2","name":"now","input":{}}]},
        {"role":"user","content":[
          {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"2"},
                                                              {"type":"text","text":"two"}]},
          {"type":"tool_result","tool_use_id":"t2","is_error":true},
          {"type":"text","text":"Well?"}]}])"),
            ChatMessages(R"([{"role":"user","content":"Sum?"},
        {"role":"assistant","content":"Let me add.","tool_calls":[
          {"id":"t1","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}},
          {"id":"t2","type":"function","function":{"name":"now","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"t1","content":"2\ntwo"},
        {"role":"tool","tool_call_id":"t2","content":""},
        {"role":"user","content":"Well?"}])"));
}

TEST_F(MessagesRequestTest, ToolsAndToolChoiceMeanOpenAis) {
  const std::string tools = R"("tools":[{"name":"add","description":"Adds",
      "input_schema":{"type":"object"}}],"tool_choice":)";
  const auto chat = [this](const std::string& members) {
    return ChatSummary(With(R"("tools":[{"type":"function","function":{"name":"add",
        "description":"Adds","parameters":{"type":"object"}}}],)" +
                            members));
  };
  EXPECT_EQ(
      Summary(With(tools + R"({"type":"tool","name":"add","disable_parallel_tool_use":true})")),
      chat(R"("tool_choice":{"type":"function","function":{"name":"add"}},
                    "parallel_tool_calls":false)"));
  for (const auto& [ours, theirs] : std::vector<std::pair<std::string, std::string>>{
           {"any", "required"}, {"auto", "auto"}, {"none", "none"}}) {
    EXPECT_EQ(Summary(With(tools + R"({"type":")" + ours + "\"}")),
              chat("\"tool_choice\":\"" + theirs + '"'))
        << ours;
  }
}

struct FieldCase {
  const char* member;
  const char* chat;     // members of a chat body that mean the same; {}: none
  const char* refused;  // the param, if it is refused
};
const FieldCase kFieldCases[] = {
    {R"("stop_sequences":["x","y"])", R"({"stop":["x","y"]})", ""},
    {R"("temperature":0.5)", R"({"temperature":0.5})", ""},
    {R"("top_p":0.5)", R"({"top_p":0.5})", ""},
    {R"("top_k":5)", R"({"top_k":5})", ""},
    {R"("seed":5)", R"({"seed":5})", ""},
    {R"("ignore_eos":true)", R"({"ignore_eos":true})", ""},
    {R"("stream":false)", R"({"stream":false})", ""},
    {R"("system":"s")",
     R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]})", ""},
    {R"("metadata":{"user_id":"u"})", "{}", ""},
    {R"("service_tier":"auto")", "{}", ""},
    {R"("cache_control":{"type":"ephemeral"})", "{}", ""},
    {R"("thinking":{"type":"enabled","budget_tokens":8})",
     R"({"chat_template_kwargs":{"enable_thinking":true}})", ""},
    {R"("thinking":{"type":"disabled"})", R"({"chat_template_kwargs":{"enable_thinking":false}})",
     ""},
    {R"("output_config":{"effort":"low"})",
     R"({"chat_template_kwargs":{"reasoning_effort":"low"}})", ""},
    {R"("output_format":{"type":"json_schema","schema":{"type":"object"}})",
     R"({"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,
         "schema":{"type":"object"}}}})",
     ""},
    {R"("new_in_2030":1)", "{}", ""},
    {R"("container":"c")", "", "container"},
    {R"("mcp_servers":[{"url":"x"}])", "{}", ""},
    {R"("context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]})", "{}",
     ""},
    {R"("container":null,"speed":"fast","betas":["x"])", "{}", ""},
    {R"("tools":[{"type":"web_search_20250305","name":"web_search"},
                 {"type":"mcp_toolset","mcp_server_name":"x"}])",
     "{}", ""},
    {R"("tools":[{"type":"bash_20250124","name":"bash"},
                 {"type":"custom","name":"a","input_schema":{},"cache_control":null,
                  "defer_loading":true}])",
     R"({"tools":[{"type":"function","function":{"name":"a","parameters":{}}}]})", ""},
    {R"("tools":[],"tool_choice":null,"thinking":null,"system":null)", "{}", ""},
    {R"("thinking":{"type":"adaptive","display":"omitted"})",
     R"({"include_reasoning":false,"chat_template_kwargs":{"enable_thinking":true}})", ""},
    {R"("output_config":{"effort":"low"},"output_format":{"type":"json_schema","schema":{}})",
     R"({"chat_template_kwargs":{"reasoning_effort":"low"},"response_format":{
         "type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":{}}}})",
     ""},
    {R"("output_config":{"format":{"type":"json_schema","schema":{}}},
        "output_format":{"type":"json_schema","schema":{}})",
     "", "output_format"},
    {R"("tools":[{"name":"a"}])", "", "tools[0].input_schema"},
    {R"("tools":[{"input_schema":{}}])", "", "tools[0].name"},
    {R"("tool_choice":{"type":"some"})", "", "tool_choice.type"},
    {R"("tool_choice":{"type":"tool"})", "", "tool_choice.name"},
    {R"("tool_choice":"auto")", "", "tool_choice"},
    {R"("thinking":{"type":"enabled"})", "", "thinking.budget_tokens"},
    {R"("thinking":{"type":"enabled","budget_tokens":9})", "", "thinking.budget_tokens"},
    {R"("thinking":{"type":"maybe"})", "", "thinking.type"},
    {R"("output_format":{"type":"xml"})", "", "output_format.type"},
    {R"("output_format":{"type":"json_schema"})", "", "output_format.schema"},
    {R"("max_tokens":0)", "", "max_tokens"},
    {R"("system":[{"type":"image"}])", "", "system[0].type"},
    {R"("stop_sequences":5)", "", "stop_sequences"},
};

TEST_F(MessagesRequestTest, EveryFieldIsReadIgnoredOrRefusedByName) {
  for (const FieldCase& one : kFieldCases) {
    EXPECT_EQ(RefusedFor(With(one.member)), one.refused) << one.member;
    if (*one.refused != '\0') continue;
    const std::string members = Json::parse(one.chat).dump().substr(1);
    EXPECT_EQ(Summary(With(one.member)),
              ChatSummary(R"({"model":"m","messages":[{"role":"user","content":"a"}])" +
                          std::string(members == "}" ? "" : ",") + members))
        << one.member;
  }
}

TEST_F(MessagesRequestTest, MessageErrorNamesTheMember) {
  const auto refused = [this](const std::string& list) {
    return RefusedFor(R"({"max_tokens":9,"messages":)" + list + "}");
  };
  EXPECT_EQ(RefusedFor(R"({"messages":[{"role":"user","content":"a"}]})"), "max_tokens");
  EXPECT_EQ(RefusedFor(R"({"max_tokens":9})"), "messages");
  EXPECT_EQ(refused("[]"), "messages");
  EXPECT_EQ(refused(R"([{"role":"tool","content":"a"}])"), "messages[0].role");
  EXPECT_EQ(refused(R"([{"role":"system","content":[{"type":"image"}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(refused(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(refused(R"([{"role":"user","content":[{"type":"image","source":{}}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(refused(R"([{"role":"user","content":[{"type":"tool_use","id":"t","name":"n",
                        "input":{}}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(refused(R"([{"role":"user","content":[{"type":"tool_result"}]}])"),
            "messages[0].content[0].tool_use_id");
  EXPECT_EQ(refused(R"([{"role":"user","content":[{"type":"document",
                        "source":{"type":"base64","data":"AA"}}]}])"),
            "messages[0].content[0].source.type");
  EXPECT_EQ(refused(R"([{"role":"user","content":[{"type":"search_result","source":"s","title":"t",
                        "content":[],"citations":{"enabled":true}}]}])"),
            "messages[0].content[0].citations.enabled");
}

TEST_F(MessagesRequestTest, SystemMessagesFollowTheTemplate) {
  const auto prompt = [this](const std::string& system, bool later_system) {
    limits_.template_roles.later_system = later_system;
    const auto parsed = ParseMessagesRequest(
        "{\"max_tokens\":9," + system + R"("messages":[{"role":"user","content":"a"},
            {"role":"system","content":[{"type":"text","text":"brief.",
                                         "cache_control":{"type":"ephemeral"}}]},
            {"role":"assistant","content":"b"},{"role":"user","content":"c"},
            {"role":"system","content":"Now."}]})",
        {&limits_, SamplingSpec()});
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return TemplateJsonOf(std::get<Conversation>(parsed->generate.prompts.front())).messages;
  };
  const std::string in_place =
      R"({"role":"user","content":"a"},{"role":"system","content":"brief."},)"
      R"({"role":"assistant","content":"b"},{"role":"user","content":"c"},)"
      R"({"role":"system","content":"Now."}])";
  const std::string others = R"({"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                             R"({"role":"user","content":"c"}])";
  const std::string system = "\"system\":\"Be\",";
  EXPECT_EQ(prompt(system, true), R"([{"role":"system","content":"Be"},)" + in_place);
  EXPECT_EQ(prompt("", true), "[" + in_place);
  EXPECT_EQ(prompt(system, false), R"([{"role":"system","content":"Be\nbrief.\nNow."},)" + others);
  EXPECT_EQ(prompt("", false), R"([{"role":"system","content":"brief.\nNow."},)" + others);
}

// Claude Code's first block differs with each request.
TEST_F(MessagesRequestTest, BillingLineIsRemovedFromThePrompt) {
  const auto system = [this](const std::string& json) {
    return Summary(R"({"max_tokens":9,"system":)" + json +
                   R"(,"messages":[{"role":"user","content":"a"}]})")["messages"];
  };
  const Json silent = ChatMessages(R"([{"role":"user","content":"a"}])");
  const Json brief = ChatMessages(
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"a"}])");
  EXPECT_EQ(system(R"([{"type":"text","text":"x-anthropic-billing-header: cc=1; cch=2;"}])"),
            silent);
  EXPECT_EQ(system(R"([{"type":"text","text":"x-anthropic-billing-header: cc=1; cch=2;"},
                       {"type":"text","text":"Be brief."}])"),
            brief);
  EXPECT_EQ(system(R"("x-anthropic-billing-header: cc=1;\nBe brief.")"), brief);
  EXPECT_EQ(system(R"("")"), silent);
  EXPECT_EQ(system("[]"), silent);
}

TEST_F(MessagesRequestTest, VendorBlocksAreOmittedAndDocumentsAreText) {
  EXPECT_EQ(Messages(R"([{"role":"user","content":[
          {"type":"document","title":"T","context":"C","source":{"type":"text","data":"D"}},
          {"type":"search_result","source":"S","title":"T",
           "content":[{"type":"text","text":"R"}]},
          {"type":"text","text":"a","citations":null,"cache_control":null}]},
        {"role":"assistant","content":[
          {"type":"redacted_thinking","data":"x"},
          {"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"q"}},
          {"type":"web_search_tool_result","tool_use_id":"s","content":[]},
          {"type":"mcp_tool_use","id":"m","name":"n","server_name":"x","input":{}},
          {"type":"mcp_tool_result","tool_use_id":"m","content":[]},
          {"type":"text","text":"b","citations":[{"type":"char_location"}]},
          {"type":"tool_use","id":"t","name":"n","input":{"b":1,"a":2},"caller":{"type":"direct"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
          {"type":"tool_reference","tool_name":"f"},{"type":"text","text":"r"}]}]}])"),
            ChatMessages(R"([{"role":"user","content":[{"type":"text","text":"T\nC\nD"},
          {"type":"text","text":"S\nT\nR"},{"type":"text","text":"a"}]},
        {"role":"assistant","content":"b","tool_calls":[{"id":"t","type":"function",
          "function":{"name":"n","arguments":"{\"b\":1,\"a\":2}"}}]},
        {"role":"tool","tool_call_id":"t","content":"f\nr"}])"));
}

TEST_F(MessagesRequestTest, EmptyAnswerAndCutCallAreAcceptedBack) {
  for (const char* content : {"null", "[]", R"([{"type":"thinking","thinking":"hm"}])",
                              R"([{"type":"text","text":""}])"}) {
    EXPECT_EQ(Messages(R"([{"role":"user","content":"a"},{"role":"assistant","content":)" +
                       std::string(content) + R"(},{"role":"user","content":"b"}])"),
              ChatMessages(R"([{"role":"user","content":"a"},{"role":"assistant","content":""},
                              {"role":"user","content":"b"}])"))
        << content;
  }
  for (const auto& [input, arguments] : std::vector<std::pair<std::string, std::string>>{
           {"null", "{}"},
           {"{}", "{}"},
           {R"("{\"a\": \"cu")", R"({"INVALID_JSON":"{\"a\": \"cu"})"}}) {
    const Json call = Messages(
        R"([{"role":"user","content":"a"},{"role":"assistant","content":[
             {"type":"tool_use","id":"t","name":"n","input":)" +
        input + R"(}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}])");
    EXPECT_EQ(call[1]["tool_calls"][0]["function"]["arguments"], Json::parse(arguments));
  }
}

TEST_F(MessagesRequestTest, AnswerContinuesALastAssistantMessage) {
  const auto chat = [this](const std::string& content) {
    return Summary(R"({"max_tokens":9,"messages":[{"role":"user","content":"a"},
                       {"role":"assistant","content":)" +
                   content + "}]}");
  };
  for (const char* content :
       {R"("b")", R"([{"type":"text","text":"b"}])",
        R"([{"type":"thinking","thinking":"hm"},{"type":"text","text":"b"}])"}) {
    const Json continued = chat(content);
    EXPECT_EQ(continued["continues_message"], true) << content;
    EXPECT_EQ(continued["begins_answer"], false) << content;
    EXPECT_EQ(continued["messages"][1]["content"], "b" + std::string(kContinuationMark)) << content;
  }
  for (const char* content : {R"("")", "null", "[]", R"([{"type":"thinking","thinking":"hm"}])"}) {
    const Json begun = chat(content);
    EXPECT_EQ(begun["continues_message"], false) << content;
    EXPECT_EQ(begun["messages"].size(), 1u) << content;
  }
  const auto refused = [this](const std::string& content) {
    return RefusedFor(R"({"max_tokens":9,"messages":[{"role":"user","content":"a"},
                          {"role":"assistant","content":)" +
                      content + "}]}");
  };
  EXPECT_EQ(refused(R"("b ")"), "messages[1].content");
  EXPECT_EQ(refused(R"([{"type":"text","text":"b\n"}])"), "messages[1].content");
  EXPECT_EQ(refused(R"([{"type":"tool_use","id":"t","name":"n","input":{}}])"),
            "messages[1].content");
}

TEST_F(MessagesRequestTest, MaxTokensLimitsTheAnswer) {
  const ReadContext context = Context();
  const auto parsed = ParseMessagesRequest(
      R"({"max_tokens":64000,"messages":[{"role":"user","content":"a"}]})", context);
  ASSERT_TRUE(parsed.ok());
  EXPECT_FALSE(parsed->generate.max_tokens);
  EXPECT_EQ(parsed->generate.max_tokens_default, 64000);
}

TEST_F(MessagesRequestTest, CountingNeedsNoLimitAndMayEndWithTheAssistant) {
  const ReadContext context = Context();
  EXPECT_TRUE(ParseCountTokensRequest(
                  R"({"messages":[{"role":"user","content":"a"}],
                      "thinking":{"type":"enabled","budget_tokens":1024}})",
                  context)
                  .ok());
  EXPECT_TRUE(ParseCountTokensRequest(
                  R"({"messages":[{"role":"user","content":"a"},
                                  {"role":"assistant","content":"b"}]})",
                  context)
                  .ok());
}

TEST_F(MessagesRequestTest, ThinkingBudgetLimitsTheReasoning) {
  const auto budget = [this](const std::string& member) {
    return Read(With(member))->generate.max_reasoning_tokens;
  };
  EXPECT_EQ(budget(R"("thinking":{"type":"enabled","budget_tokens":8})"), 8);
  EXPECT_EQ(budget("\"x\":0"), -1);
}

}  // namespace
}  // namespace diffserve
