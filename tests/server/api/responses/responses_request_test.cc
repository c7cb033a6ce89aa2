// SPDX-License-Identifier: Apache-2.0
// Bodies of /v1/responses: the chat requests that mean the same, the members that the reply
// repeats, and the names in refusals.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/api/openai/request.h"
#include "server/api/responses/encoder.h"
#include "server/api/responses/request.h"
#include "server/serving/request/request_checks.h"
#include "tests/testing/server/request_summary.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;

class ResponsesRequestTest : public ::testing::Test {
 protected:
  ResponsesRequestTest() { limits_.formats.tools = FindToolFormat("hermes"); }

  ReadContext Context() const { return {&limits_, SamplingSpec()}; }
  Result<ResponsesRequest> Read(const std::string& body) const {
    return ParseResponsesRequest(body, Context());
  }
  static std::string With(const std::string& member) {
    return R"({"model":"m","input":"a",)" + member + "}";
  }
  Json Summary(const std::string& body) const { return SummaryOf(Read(body)); }
  Json SummaryOf(const Result<ResponsesRequest>& request) const {
    EXPECT_TRUE(request.ok()) << request.status().message();
    if (!request.ok()) return Json();
    const Result<ResponsesChat> chat = ChatOf(*request, nullptr, Context());
    EXPECT_TRUE(chat.ok()) << chat.status().message();
    return chat.ok() ? testing::ChatSummary(chat->request) : Json();
  }
  Json Messages(const std::string& input) const {
    return Summary("{\"input\":" + input + "}")["messages"];
  }
  // The same of a body of /v1/chat/completions.
  Json ChatSummary(const std::string& body) const {
    return testing::ChatSummary(ParseChatRequest(body, Context()));
  }
  Json ChatMessages(const std::string& list) const {
    return ChatSummary("{\"messages\":" + list + "}")["messages"];
  }
  std::string RefusedFor(const std::string& body) const {
    const Result<ResponsesRequest> request = Read(body);
    if (request.ok()) return "";
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(request.status().message().find(request.status().param()), std::string::npos)
        << request.status().message();
    return request.status().param();
  }

  FrontendOptions limits_;
};

TEST_F(ResponsesRequestTest, TextInputIsAUserMessage) {
  EXPECT_EQ(Messages("\"Hi\""), ChatMessages(R"([{"role":"user","content":"Hi"}])"));
}

TEST_F(ResponsesRequestTest, ItemsBecomeMessagesCallsAndMessagesOfTools) {
  EXPECT_EQ(
      Messages(R"([{"role":"developer","content":"Be brief."},
        {"type":"message","role":"user","content":[{"type":"input_text","text":"Sum?"}]},
        {"type":"reasoning","id":"rs_1","summary":[]},
        {"type":"message","role":"assistant","id":"msg_1","status":"completed",
         "content":[{"type":"output_text","text":"Let me add.","annotations":[]}]},
        {"type":"function_call","call_id":"c1","name":"add","arguments":"{\"a\":1}"},
        {"type":"function_call","call_id":"c2","name":"now","arguments":"{}"},
        {"type":"function_call_output","call_id":"c1","output":"2"},
        {"type":"function_call_output","call_id":"c2",
         "output":[{"type":"input_text","text":"noon"}]}])"),
      ChatMessages(R"([{"role":"developer","content":"Be brief."},{"role":"user","content":"Sum?"},
        {"role":"assistant","content":"Let me add.","tool_calls":[
          {"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}},
          {"id":"c2","type":"function","function":{"name":"now","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c1","content":"2"},
        {"role":"tool","tool_call_id":"c2","content":"noon"}])"));
}

TEST_F(ResponsesRequestTest, ClientRunCallsAreCalls) {
  EXPECT_EQ(Messages(R"([
        {"type":"custom_tool_call","call_id":"c1","name":"apply_patch","input":"+a"},
        {"type":"custom_tool_call_output","call_id":"c1","output":"ok"},
        {"type":"local_shell_call","call_id":"c2","status":"completed",
         "action":{"type":"exec","command":["ls"],"env":null}},
        {"type":"local_shell_call_output","id":"c2","output":"a b"},
        {"type":"shell_call","call_id":"c3","action":{"commands":["ls"]}},
        {"type":"shell_call_output","call_id":"c3","output":[
          {"stdout":"a","stderr":"","outcome":{"type":"exit","exit_code":0}},{"stderr":"b"}]},
        {"type":"apply_patch_call","call_id":"c4","operation":{"type":"delete_file","path":"p"}},
        {"type":"apply_patch_call_output","call_id":"c4","status":"completed"},
        {"type":"function_call","call_id":"c5","name":"f","arguments":"{\"a\": \"cut"},
        {"type":"function_call_output","call_id":"c5","output":null}])"),
            ChatMessages(R"([
        {"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",
          "function":{"name":"apply_patch","arguments":"{\"input\":\"+a\"}"}}]},
        {"role":"tool","tool_call_id":"c1","content":"ok"},
        {"role":"assistant","content":"","tool_calls":[{"id":"c2","type":"function",
          "function":{"name":"local_shell",
                      "arguments":"{\"type\":\"exec\",\"command\":[\"ls\"],\"env\":null}"}}]},
        {"role":"tool","tool_call_id":"c2","content":"a b"},
        {"role":"assistant","content":"","tool_calls":[{"id":"c3","type":"function",
          "function":{"name":"shell","arguments":"{\"commands\":[\"ls\"]}"}}]},
        {"role":"tool","tool_call_id":"c3","content":"a\nb"},
        {"role":"assistant","content":"","tool_calls":[{"id":"c4","type":"function",
          "function":{"name":"apply_patch",
                      "arguments":"{\"type\":\"delete_file\",\"path\":\"p\"}"}}]},
        {"role":"tool","tool_call_id":"c4","content":""},
        {"role":"assistant","content":"","tool_calls":[{"id":"c5","type":"function",
          "function":{"name":"f","arguments":"{\"a\": \"cut"}}]},
        {"role":"tool","tool_call_id":"c5","content":""}])"));
}

TEST_F(ResponsesRequestTest, VendorRunCallsAreOmitted) {
  for (const char* type :
       {"reasoning", "compaction", "compaction_summary", "web_search_call", "file_search_call",
        "image_generation_call", "code_interpreter_call", "tool_search_call", "tool_search_output",
        "mcp_list_tools", "mcp_call", "mcp_approval_request", "ghost_snapshot", "other"}) {
    EXPECT_EQ(Messages(R"([{"role":"user","content":"Hi"},{"type":")" + std::string(type) +
                       R"(","id":"x","encrypted_content":"AAAA","status":"completed"}])"),
              ChatMessages(R"([{"role":"user","content":"Hi"}])"))
        << type;
  }
}

TEST_F(ResponsesRequestTest, AnswerMayBeEmpty) {
  for (const char* content :
       {R"("content":[])", R"("content":null)", R"("phase":"final_answer")"}) {
    EXPECT_EQ(Messages(R"([{"type":"message","role":"assistant","id":"msg_1",)" +
                       std::string(content) + "}]"),
              ChatMessages(R"([{"role":"assistant","content":""}])"))
        << content;
  }
}

TEST_F(ResponsesRequestTest, ItemReferenceResolvesToTheStoredItem) {
  ResponseObject object;
  object.id = "resp_ab";
  object.items.resize(3);
  object.items[0] = {AnswerPart::Kind::kReasoning, "rs_ab_0", "hm", "", "", true};
  object.items[1] = {AnswerPart::Kind::kContent, "msg_ab_1", "Yes?", "", "", true};
  object.items[2] = {AnswerPart::Kind::kToolCall, "fc_ab_2", "{}", "now", "call_ab_2", true};
  const FindResponseItem find = [&object](const std::string& id) {
    return ResponseIdOf(id) == object.id ? FindItem(object, id) : std::nullopt;
  };
  const auto read = [&](const std::string& id) {
    return ParseResponsesRequest(
        R"({"input":[{"role":"user","content":"Hi"},{"type":"item_reference","id":")" + id +
            "\"}]}",
        Context(), find);
  };
  const auto messages = [&](const std::string& id) { return SummaryOf(read(id))["messages"]; };
  EXPECT_EQ(messages("rs_ab_0").size(), 1u);
  EXPECT_EQ(messages("msg_ab_1")[1], Json::parse(R"({"role":"assistant","content":"Yes?"})"));
  EXPECT_EQ(messages("fc_ab_2")[1]["tool_calls"][0]["id"], "call_ab_2");
  for (const char* id : {"msg_ab_7", "msg_cd_1", "msg", "_", "x_y_z_1"})
    EXPECT_EQ(read(id).status().param(), "input[1].id") << id;
}

TEST_F(ResponsesRequestTest, ItemsAreStoredWithTheirOwnIds) {
  const Result<ResponsesRequest> request = Read(
      R"({"input":[{"role":"user","content":"Hi"},
                   {"type":"function_call_output","call_id":"c","output":"x"}]})");
  ASSERT_TRUE(request.ok());
  ASSERT_EQ(request->input.items.size(), 2u);
  Json item = Json::parse(request->input.items[0]);
  EXPECT_EQ(item["id"], request->input.item_ids[0]);
  item.erase("id");
  EXPECT_EQ(item, Json::parse(R"({"type":"message","status":"completed","role":"user",
      "content":[{"type":"input_text","text":"Hi"}]})"));
  EXPECT_EQ(Json::parse(request->input.items[1])["output"], "x");
  EXPECT_NE(request->input.item_ids[0], request->input.item_ids[1]);
}

struct ResponsesFieldCase {
  const char* member;
  const char* chat;     // members of a chat body that mean the same; {}: none
  const char* refused;  // the param, if it is refused
};
const ResponsesFieldCase kResponsesFieldCases[] = {
    {R"("max_output_tokens":5)", "{}", ""},
    {R"("temperature":0.5)", R"({"temperature":0.5})", ""},
    {R"("top_p":0.5)", R"({"top_p":0.5})", ""},
    {R"("seed":5)", R"({"seed":5})", ""},
    {R"("stop":["x"])", R"({"stop":["x"]})", ""},
    {R"("stream":true)", R"({"stream":true})", ""},
    {R"("instructions":"i")",
     R"({"messages":[{"role":"system","content":"i"},{"role":"user","content":"a"}]})", ""},
    {R"("store":false)", "{}", ""},
    {R"("metadata":{"k":"v"})", "{}", ""},
    {R"("previous_response_id":"resp_1")", "{}", ""},
    {R"("user":"u","safety_identifier":"s","prompt_cache_key":"k")", "{}", ""},
    {R"("service_tier":"auto","stream_options":{"include_obfuscation":false})", "{}", ""},
    {R"("truncation":"disabled")", "{}", ""},
    {R"("truncation":"auto")", R"({"truncate_prompt_tokens":-1})", ""},
    {R"("parallel_tool_calls":true)", "{}", ""},
    {R"("parallel_tool_calls":false)", R"({"parallel_tool_calls":false})", ""},
    {R"("reasoning":{"effort":"low","summary":"auto"})",
     R"({"chat_template_kwargs":{"reasoning_effort":"low"}})", ""},
    {R"("text":{"format":{"type":"text"},"verbosity":"low"})", "{}", ""},
    {R"("text":{"format":{"type":"json_object"}})", R"({"response_format":{"type":"json_object"}})",
     ""},
    {R"("text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},
        "strict":true}})",
     R"({"response_format":{"type":"json_schema",
         "json_schema":{"name":"n","schema":{"type":"object"},"strict":true}}})",
     ""},
    {R"("tools":[{"type":"function","name":"add","parameters":{"type":"object"},"strict":true}])",
     R"({"tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"},
         "strict":true}}]})",
     ""},
    {R"("tools":[{"type":"function","name":"add"}],"tool_choice":"required")",
     R"({"tools":[{"type":"function","function":{"name":"add"}}],"tool_choice":"required"})", ""},
    {R"("tools":[{"type":"function","name":"add"}],
        "tool_choice":{"type":"function","name":"add"})",
     R"({"tools":[{"type":"function","function":{"name":"add"}}],
         "tool_choice":{"type":"function","function":{"name":"add"}}})",
     ""},
    {R"("background":false,"include":[])", "{}", ""},
    {R"("include":["reasoning.encrypted_content","web_search_call.action.sources"])", "{}", ""},
    {R"("max_tool_calls":2,"client_metadata":{"k":"v"},"context_management":[{"type":"compaction"}])",
     "{}", ""},
    {R"("reasoning":{"summary":"detailed"})", "{}", ""},
    {R"("reasoning":null,"text":null,"tools":null,"tool_choice":"","instructions":"")", "{}", ""},
    {R"("tools":[{"type":"web_search"},{"type":"custom","name":"patch"},{"type":"local_shell"},
        {"type":"namespace","name":"x","tools":[{"type":"function","name":"go"}]}])",
     "{}", ""},
    {R"("tools":[{"type":"tool_search"},{"name":"add"},{"type":"image_generation"}])",
     R"({"tools":[{"type":"function","function":{"name":"add"}}]})", ""},
    {R"("new_in_2030":1)", "{}", ""},
    {R"("background":true)", "", "background"},
    {R"("include":["message.output_text.logprobs"])", R"({"logprobs":true})", ""},
    {R"("include":["message.output_text.logprobs"],"top_logprobs":2)",
     R"({"logprobs":true,"top_logprobs":2})", ""},
    {R"("include":["message.output_text.logprobs"],"top_logprobs":21)", "", "top_logprobs"},
    {R"("include":["message.output_text.images"])", "", "include"},
    {R"("top_logprobs":0)", "{}", ""},
    {R"("conversation":"c")", "", "conversation"},
    {R"("prompt":{"id":"p"})", "", "prompt"},
    {R"("top_logprobs":2)", "", "top_logprobs"},
    {R"("reasoning":{"summary":"long"})", "", "reasoning.summary"},
    {R"("truncation":"some")", "", "truncation"},
    {R"("max_output_tokens":0)", "", "max_output_tokens"},
    {R"("tools":[{"type":"function"}])", "", "tools[0].name"},
    {R"("tool_choice":"any")", "", "tool_choice"},
    {R"("tool_choice":{"type":"mcp"})", "", "tool_choice.type"},
    {R"("text":{"format":{"type":"xml"}})", "", "text.format.type"},
    {R"("text":{"format":{"type":"json_schema","name":"n"}})", "", "text.format.schema"},
    {R"("store":1)", "", "store"},
    {R"("metadata":[])", "", "metadata"},
};

TEST_F(ResponsesRequestTest, EveryFieldIsReadIgnoredOrRefusedByName) {
  for (const ResponsesFieldCase& one : kResponsesFieldCases) {
    EXPECT_EQ(RefusedFor(With(one.member)), one.refused) << one.member;
    if (*one.refused != '\0') continue;
    const std::string members = Json::parse(one.chat).dump().substr(1);
    EXPECT_EQ(Summary(With(one.member)),
              ChatSummary(R"({"model":"m","messages":[{"role":"user","content":"a"}])" +
                          std::string(members == "}" ? "" : ",") + members))
        << one.member;
  }
}

TEST_F(ResponsesRequestTest, ItemErrorNamesTheMember) {
  const auto refused = [this](const std::string& item) {
    return RefusedFor("{\"input\":[" + item + "]}");
  };
  EXPECT_EQ(RefusedFor("{}"), "input");
  EXPECT_EQ(refused(""), "input");
  EXPECT_EQ(refused(R"({"content":"a"})"), "input[0].role");
  EXPECT_EQ(refused(R"({"role":"user"})"), "input[0].content");
  EXPECT_EQ(refused(R"({"role":"user","content":[{"type":"input_image"}]})"), "input[0].content");
  EXPECT_EQ(refused(R"({"type":"item_reference","id":"x"})"), "input[0].id");
  EXPECT_EQ(refused(R"({"type":"computer_call","call_id":"c"})"), "input[0].type");
  EXPECT_EQ(refused(R"({"type":"custom_tool_call","call_id":"c","input":"x"})"), "input[0].name");
  EXPECT_EQ(refused(R"({"type":"function_call_output","output":"x"})"), "input[0].call_id");
}

TEST_F(ResponsesRequestTest, ReplyRepeatsRequestedAndChosenSettings) {
  const Result<ResponsesRequest> request = Read(
      R"({"input":"a","instructions":"i","metadata":{"k":"v"},"temperature":0.5})");
  ASSERT_TRUE(request.ok());
  const Result<ResponsesChat> chat = ChatOf(*request, nullptr, Context());
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(Json::parse("{" + *chat->echo + "}"), Json::parse(R"({"instructions":"i",
      "background":false,"max_output_tokens":null,"max_tool_calls":null,"metadata":{"k":"v"},
      "parallel_tool_calls":true,"previous_response_id":null,"prompt_cache_key":null,
      "safety_identifier":null,"service_tier":"default","store":true,"top_logprobs":0,"user":null,
      "tools":[],"tool_choice":"auto","text":{"format":{"type":"text"}},
      "reasoning":{"effort":null,"summary":null},"truncation":"disabled","temperature":0.5,
      "top_p":1.0})"));
  EXPECT_EQ(TemplateJsonOf(std::get<Conversation>(chat->request.generate.prompts[0])).messages,
            R"([{"role":"system","content":"i"},{"role":"user","content":"a"}])");
  EXPECT_STREQ(chat->request.generate.names.max_tokens, "max_output_tokens");
}

TEST_F(ResponsesRequestTest, AllowedToolsAreThoseOfChat) {
  const std::string tools =
      R"("tools":[{"type":"function","name":"now"},{"type":"function","name":"then"}],)";
  const auto choosing = [&](const std::string& members) {
    return With(tools + R"("tool_choice":{"type":"allowed_tools",)" + members + "}");
  };
  for (const std::string mode : {"auto", "required"}) {
    EXPECT_EQ(
        Summary(choosing("\"mode\":\"" + mode +
                         R"(","tools":[{"type":"function","name":"then"},
                                             {"type":"mcp","server_label":"s"}])")),
        ChatSummary(R"({"model":"m","messages":[{"role":"user","content":"a"}],"tools":[
                  {"type":"function","function":{"name":"now"}},
                  {"type":"function","function":{"name":"then"}}],
                  "tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":")" +
                    mode + R"(","tools":[{"type":"function","function":{"name":"then"}}]}}})"))
        << mode;
  }
  EXPECT_EQ(RefusedFor(choosing(R"("mode":"auto","tools":[{"type":"function","name":"x"}])")),
            "tool_choice.tools[0].name");
  EXPECT_EQ(RefusedFor(choosing(R"("tools":[{"type":"function","name":"now"}])")),
            "tool_choice.mode");
}

TEST_F(ResponsesRequestTest, DeveloperMessagesBecomeSystemPromptsIfTheTemplateLacksThem) {
  const auto prompt = [this](bool developer, bool later_system) {
    limits_.template_roles = {developer, later_system};
    const Result<ResponsesRequest> request = Read(R"({"instructions":"i","input":[
        {"role":"developer","content":"d"},{"role":"user","content":"a"}]})");
    const Result<ResponsesChat> chat = ChatOf(*request, nullptr, Context());
    EXPECT_TRUE(chat.ok()) << chat.status().message();
    return TemplateJsonOf(std::get<Conversation>(chat->request.generate.prompts[0])).messages;
  };
  const std::string user = R"({"role":"user","content":"a"}])";
  const std::string system = R"([{"role":"system","content":"i"},)";
  EXPECT_EQ(prompt(true, true), system + R"({"role":"developer","content":"d"},)" + user);
  EXPECT_EQ(prompt(true, false), system + R"({"role":"developer","content":"d"},)" + user);
  EXPECT_EQ(prompt(false, true), system + R"({"role":"system","content":"d"},)" + user);
  EXPECT_EQ(prompt(false, false), R"([{"role":"system","content":"i\nd"},)" + user);
}

TEST_F(ResponsesRequestTest, PreviousAnswerIsContinuedWithoutItsInstructions) {
  auto object = std::make_shared<ResponseObject>();
  object->items.resize(2);
  object->items[0].kind = AnswerPart::Kind::kReasoning;
  object->items[0].text = "hm";
  object->items[1].text = "Yes?";
  auto input = std::make_shared<ResponseInput>();
  input->messages = {{.role = "user", .content = "Hi"}};
  const StoredResponse previous{object, input};
  const Result<ResponsesRequest> request = Read(R"({"input":"Go on","instructions":"new"})");
  ASSERT_TRUE(request.ok());
  const Result<ResponsesChat> chat = ChatOf(*request, &previous, Context());
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  const std::string conversation =
      R"({"role":"user","content":"Hi"},{"role":"assistant","content":"Yes?"},)"
      R"({"role":"user","content":"Go on"})";
  EXPECT_EQ(chat->input->messages.size(), 3u);
  EXPECT_EQ(TemplateJsonOf(std::get<Conversation>(chat->request.generate.prompts[0])).messages,
            R"([{"role":"system","content":"new"},)" + conversation + "]");
}

TEST_F(ResponsesRequestTest, FrontendErrorsUseThisRoutesNames) {
  const Result<ResponsesRequest> parsed = Read(R"({"input":"Hi","max_output_tokens":3})");
  ASSERT_TRUE(parsed.ok());
  GenerateRequest request = parsed->request.generate;
  EXPECT_EQ(CheckNeedsNoTokenizer(request).param(), "input");
  const RequestLimits limits{&limits_.names, /*vocab_size=*/100, /*max_model_len=*/64,
                             /*max_waiting_requests=*/8, /*max_token_bytes=*/0};
  request.max_tokens = -1;
  EXPECT_EQ(CheckRequest(request, limits).message(), "max_output_tokens is -1; allowed: 0 to 64");
  request.max_tokens = 3;
  request.sampling.num_logprobs = 1000;
  EXPECT_EQ(CheckRequest(request, limits).param(), "top_logprobs");
}

}  // namespace
}  // namespace diffserve
