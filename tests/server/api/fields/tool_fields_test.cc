// SPDX-License-Identifier: Apache-2.0
// Tools and reasoning in chat bodies: accepted members with their effect, and refusals with their
// path.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/api/openai/request.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Parameter = std::pair<std::string, std::string>;

constexpr const char* kWeatherTool =
    R"({"type":"function","function":{"name":"get_weather","description":"of a \"city\"",
        "parameters":{"type":"object","properties":{"zip":{"type":"string"},"days":{"type":"integer"}},"required":["zip"]}}})";
constexpr const char* kBareTool = R"({"type":"function","function":{"name":"now"}})";

class ToolFieldsTest : public ::testing::Test {
 protected:
  Result<OpenAiRequest> Chat(const std::string& members) const {
    return ParseChatRequest(R"({"messages":[{"role":"user","content":"a"}],)" + members + "}",
                            {&limits_, SamplingSpec()});
  }
  Result<OpenAiRequest> Tools(const std::string& tools, const std::string& members = "") const {
    return Chat("\"tools\":[" + tools + "]" + (members.empty() ? "" : "," + members));
  }
  Result<OpenAiRequest> Messages(const std::string& messages) const {
    return ParseChatRequest("{\"messages\":[" + messages + "]}", {&limits_, SamplingSpec()});
  }
  static const Conversation& PromptOf(const Result<OpenAiRequest>& parsed) {
    return std::get<Conversation>(parsed.value().generate.prompts.at(0));
  }

  FrontendOptions limits_;
};

TEST_F(ToolFieldsTest, ToolsReachTheTemplateUnchanged) {
  limits_.formats.tools = FindToolFormat("hermes");
  const auto parsed = Tools(std::string(kWeatherTool) + ',' + kBareTool);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const OrderedJson tools = OrderedJson::parse(TemplateJsonOf(PromptOf(parsed)).tools);
  ASSERT_EQ(tools.size(), 2u);
  EXPECT_EQ(tools[0].dump(), OrderedJson::parse(kWeatherTool).dump());
  EXPECT_EQ(tools[1]["function"]["parameters"].dump(), R"({"type":"object","properties":{}})");
  EXPECT_EQ(parsed->answer.tools, limits_.formats.tools);
  EXPECT_TRUE(parsed->answer.parallel);
  const ParameterTypes& types = *parsed->answer.parameter_types;
  EXPECT_EQ(types.at(Parameter("get_weather", "zip")), ParameterType::kString);
  EXPECT_EQ(types.at(Parameter("get_weather", "days")), ParameterType::kInteger);
  EXPECT_FALSE(parsed->generate.grammar);
  EXPECT_TRUE(parsed->generate.skip_special_tokens);
}

TEST_F(ToolFieldsTest, NoneKeepsTheToolsInThePromptAndParsesNoCall) {
  for (const char* members : {"", R"("tool_choice":"auto")"}) {
    const auto parsed = Tools(kWeatherTool, members);
    EXPECT_EQ(parsed.status().param(), "tool_choice") << members;
    EXPECT_NE(parsed.status().message().find("hermes, llama3_json"), std::string::npos);
  }
  const auto none = Tools(kWeatherTool, R"("tool_choice":"none")");
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_FALSE(TemplateJsonOf(PromptOf(none)).tools.empty());
  EXPECT_FALSE(none->answer.parses());
}

TEST_F(ToolFieldsTest, NamedFunctionAnswerIsItsArguments) {
  const auto parsed = Tools(
      kWeatherTool, R"("tool_choice":{"type":"function","function":{"name":"get_weather"}})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(parsed->answer.forced_call);
  EXPECT_EQ(parsed->answer.forced_name, "get_weather");
  ASSERT_TRUE(parsed->generate.grammar);
  EXPECT_EQ(parsed->generate.grammar->kind, GrammarSpec::Kind::kJsonSchema);
  EXPECT_EQ(OrderedJson::parse(parsed->generate.grammar->text),
            OrderedJson::parse(kWeatherTool)["function"]["parameters"]);
}

TEST_F(ToolFieldsTest, RequiredConstrainsToAListOfCalls) {
  const auto parsed = Tools(
      std::string(kBareTool) + R"(,{"type":"function","function":{"name":"b","parameters":{}}})",
      R"("tool_choice":"required")");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(parsed->answer.forced_call);
  EXPECT_EQ(parsed->answer.forced_name, "");
  ASSERT_TRUE(parsed->generate.grammar);
  EXPECT_EQ(parsed->generate.grammar->kind, GrammarSpec::Kind::kLark);
  EXPECT_EQ(parsed->generate.grammar->text,
            "start: \"[\" call (\", \" call){0,15} \"]\"\n"
            "call: call_0 | call_1\n"
            "call_0: \"{\\\"name\\\": \\\"now\\\", \\\"arguments\\\": \" arguments_0 \"}\"\n"
            "arguments_0: %json "
            "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}\n"
            "call_1: \"{\\\"name\\\": \\\"b\\\", \\\"arguments\\\": \" arguments_1 \"}\"\n"
            "arguments_1: %json {\"type\":\"object\"}\n");
  const auto single = Tools(kBareTool, R"("tool_choice":"required","parallel_tool_calls":false)");
  ASSERT_TRUE(single.ok()) << single.status().message();
  EXPECT_TRUE(single->generate.grammar->text.starts_with("start: \"[\" call \"]\"\n"));
  EXPECT_FALSE(single->answer.parallel);
}

TEST_F(ToolFieldsTest, StrictFunctionsConstrainCallsThatTheModelOpens) {
  const std::string strict =
      R"({"type":"function","function":{"name":"s","strict":true,"parameters":{"properties":{"a":{"type":"integer"}}}}})";
  limits_.formats.tools = FindToolFormat("hermes");
  const auto parsed = Tools(strict + ',' + kBareTool);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_TRUE(parsed->generate.grammar);
  EXPECT_EQ(parsed->generate.grammar->kind, GrammarSpec::Kind::kStructuralTag);
  EXPECT_EQ(OrderedJson::parse(parsed->generate.grammar->text),
            OrderedJson::parse(R"({"structures":[
      {"begin":"<tool_call>\n{\"name\": \"s\", \"arguments\": ",
       "schema":{"properties":{"a":{"type":"integer"}},"type":"object"},"end":"}\n</tool_call>"},
      {"begin":"<tool_call>\n{\"name\": \"now\", \"arguments\": ",
       "schema":{"type":"object"},"end":"}\n</tool_call>"}],
      "triggers":["<tool_call>"]})"));
  limits_.formats.tools = FindToolFormat("mistral");
  EXPECT_EQ(Tools(strict).status().param(), "tools");
  EXPECT_TRUE(Tools(strict, R"("tool_choice":"required")").ok());
}

TEST_F(ToolFieldsTest, ConstrainedAnswerMayCallIfAMarkerIdentifiesCalls) {
  const std::string form = R"("response_format":{"type":"json_object"})";
  const std::string strict =
      R"({"type":"function","function":{"name":"s","strict":true,"parameters":{}}})";
  for (const char* name : {"hermes", "mistral", "qwen_xml", "motif"}) {
    limits_.formats.tools = FindToolFormat(name);
    const auto parsed = Tools(kBareTool, form);
    ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.status().message();
    EXPECT_EQ(parsed->generate.grammar->kind, GrammarSpec::Kind::kJsonObject);
    EXPECT_EQ(parsed->generate.call_marker, limits_.formats.tools->begin);
    const bool can_be_strict = Tools(strict).ok();
    EXPECT_EQ(parsed->generate.call_grammar.has_value(), can_be_strict) << name;
  }
  limits_.formats.tools = FindToolFormat("hermes");
  const auto held = Tools(strict, form);
  ASSERT_TRUE(held.ok()) << held.status().message();
  EXPECT_EQ(held->generate.grammar->kind, GrammarSpec::Kind::kJsonObject);
  ASSERT_TRUE(held->generate.call_grammar);
  EXPECT_EQ(held->generate.call_grammar->kind, GrammarSpec::Kind::kStructuralTag);
  const auto free = Tools(kBareTool, form);
  ASSERT_TRUE(free.ok()) << free.status().message();
  EXPECT_EQ(OrderedJson::parse(free->generate.call_grammar->text),
            OrderedJson::parse(R"({"structures":[
      {"begin":"<tool_call>\n{\"name\": \"now\", \"arguments\": ",
       "schema":{"type":"object"},"end":"}\n</tool_call>"}],
      "triggers":["<tool_call>"]})"));
  limits_.formats.tools = FindToolFormat("llama3_json");
  const Status refused = Tools(kBareTool, form).status();
  EXPECT_EQ(refused.param(), "tool_choice");
  EXPECT_NE(refused.message().find("llama3_json"), std::string::npos) << refused.message();
}

TEST_F(ToolFieldsTest, ParametersOfEveryValidFormConstrainToAnObject) {
  // The client's tool, the template's view of it, and the schema of its arguments.
  const char* kForms[][3] = {
      {R"({})", R"({"type":"object"})", R"({"type":"object"})"},
      {R"(true)", R"({"type":"object"})", R"({"type":"object"})"},
      {R"({ })", R"({"type":"object"})", R"({"type":"object"})"},
      {R"({"type":["object","null"]})", R"({"type":["object","null"]})", R"({"type":"object"})"},
      {R"({"type":null,"title":"t"})", R"({"type":null,"title":"t"})",
       R"({"type":"object","title":"t"})"},
      {R"({"anyOf":[{"type":"object"}]})", R"({"type":"object","anyOf":[{"type":"object"}]})",
       R"({"anyOf":[{"type":"object"}],"type":"object"})"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})",
       R"({"type":"object","$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})",
       R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}},"type":"object"})"},
      {R"({"type":"object","properties":null})", R"({"type":"object","properties":null})",
       R"({"type":"object","properties":null})"}};
  for (const auto& [sent, shown, held] : kForms) {
    const auto parsed = Tools(
        R"({"type":"function","function":{"name":"f","parameters":)" + std::string(sent) + "}}",
        R"("tool_choice":{"type":"function","function":{"name":"f"}})");
    ASSERT_TRUE(parsed.ok()) << sent << ": " << parsed.status().message();
    EXPECT_EQ(
        OrderedJson::parse(TemplateJsonOf(PromptOf(parsed)).tools)[0]["function"]["parameters"],
        OrderedJson::parse(shown))
        << sent;
    EXPECT_EQ(OrderedJson::parse(parsed->generate.grammar->text), OrderedJson::parse(held)) << sent;
  }
  for (const char* none : {R"("name":"f")", R"("name":"f","parameters":null)"}) {
    EXPECT_TRUE(Tools(R"({"type":"function","function":{)" + std::string(none) + "}}",
                      R"("tool_choice":"required")")
                    .ok());
  }
}

TEST_F(ToolFieldsTest, InvalidToolsAreRefusedWithTheirPath) {
  limits_.formats.tools = FindToolFormat("hermes");
  const auto refused_for = [&](const std::string& tools) { return Tools(tools).status().param(); };
  const auto function = [](const std::string& members) {
    return R"({"type":"function","function":{)" + members + "}}";
  };
  EXPECT_EQ(Chat(R"("tools":{})").status().param(), "tools");
  EXPECT_EQ(refused_for("7"), "tools[0]");
  EXPECT_EQ(refused_for(R"({"type":"function"})"), "tools[0].function");
  EXPECT_EQ(refused_for(function("")), "tools[0].function.name");
  EXPECT_EQ(refused_for(function(R"("name":"a b")")), "tools[0].function.name");
  EXPECT_EQ(refused_for(function("\"name\":\"" + std::string(129, 'a') + "\"")),
            "tools[0].function.name");
  EXPECT_EQ(refused_for(function(R"("name":"a","description":1)")),
            "tools[0].function.description");
  EXPECT_EQ(refused_for(function(R"("name":"a","parameters":[])")), "tools[0].function.parameters");
  EXPECT_EQ(refused_for(function(R"("name":"a","parameters":false)")),
            "tools[0].function.parameters");
  for (const char* type : {R"("array")", R"(["array","null"])", "7"}) {
    EXPECT_EQ(
        refused_for(function(R"("name":"a","parameters":{"type":)" + std::string(type) + "}")),
        "tools[0].function.parameters.type");
  }
  EXPECT_EQ(refused_for(function(R"("name":"a","strict":"yes")")), "tools[0].function.strict");
  EXPECT_EQ(refused_for(function(R"("name":"a")") + ',' + function(R"("name":"a")")),
            "tools[1].function.name");
  std::string many = function(R"("name":"a")");
  for (size_t i = 0; i < kMaxTools; ++i)
    many += ',' + function(R"("name":"a)" + std::to_string(i) + '"');
  EXPECT_EQ(refused_for(many), "tools");
  const std::string half(kMaxToolsBytes / 2, 'd');
  EXPECT_EQ(refused_for(function(R"("name":"a","description":")" + half + '"') + ',' +
                        function(R"("name":"b","description":")" + half + '"')),
            "tools");
}

TEST_F(ToolFieldsTest, InvalidChoicesAreRefused) {
  limits_.formats.tools = FindToolFormat("hermes");
  for (const char* choice :
       {"\"any\"", "7", R"({"type":"function"})", R"({"type":"function","function":{}})",
        R"({"type":"allowed_tools","function":{"name":"now"}})",
        R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"now"}]})",
        R"({"type":"function","function":{"name":"other"}})"}) {
    EXPECT_EQ(Tools(kBareTool, std::string("\"tool_choice\":") + choice).status().param(),
              "tool_choice")
        << choice;
  }
  for (const char* choice : {"\"required\"", R"({"type":"function","function":{"name":"now"}})"}) {
    EXPECT_EQ(Chat(std::string("\"tool_choice\":") + choice).status().param(), "tool_choice");
  }
  for (const char* choice : {"\"none\"", "\"auto\"", "null"})
    EXPECT_TRUE(Chat(std::string("\"tool_choice\":") + choice).ok()) << choice;
  EXPECT_EQ(Tools(kBareTool, R"("parallel_tool_calls":1)").status().param(), "parallel_tool_calls");
}

TEST_F(ToolFieldsTest, CompletionsHaveNoTools) {
  for (const char* member : {R"("tools":[{"type":"function"}])", R"("tool_choice":"required")",
                             R"("reasoning_effort":"low")"}) {
    const std::string text = member;
    EXPECT_EQ(ParseCompletionRequest("{\"prompt\":\"a\"," + text + "}", {&limits_, SamplingSpec()})
                  .status()
                  .param(),
              text.substr(1, text.find('"', 1) - 1));
  }
}

TEST_F(ToolFieldsTest, ToolMessagesAreConvertedForTheTemplate) {
  const auto parsed = Messages(R"({"role":"user","content":"q"},
      {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
        {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2]}"}},
        {"function":{"name":"g","arguments":""}}]},
      {"role":"tool","tool_call_id":"call_1","content":"sunny"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(
      TemplateJsonOf(PromptOf(parsed)).messages,
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[)"
      R"({"id":"call_1","type":"function","function":{"name":"f","arguments":{"b": 1, "a": [2]}}},)"
      R"({"type":"function","function":{"name":"g","arguments":{}}}],"reasoning_content":"hm"},)"
      R"({"role":"tool","content":"sunny","tool_call_id":"call_1"}])");
}

TEST_F(ToolFieldsTest, InvalidToolMessagesAreRefusedWithTheirPath) {
  const auto refused_for = [&](const std::string& message) {
    return Messages(message).status().param();
  };
  EXPECT_EQ(refused_for(R"({"role":"tool","content":"a"})"), "messages[0].tool_call_id");
  EXPECT_EQ(refused_for(R"({"role":"user","content":null})"), "messages[0].content");
  EXPECT_EQ(refused_for(R"({"role":"system"})"), "messages[0].content");
  EXPECT_EQ(refused_for(R"({"role":"user","content":"a","tool_calls":[{"id":"x"}]})"),
            "messages[0].tool_calls");
  EXPECT_EQ(refused_for(R"({"role":"assistant","content":"a","tool_calls":[{"id":"x"}]})"),
            "messages[0].tool_calls[0].function.name");
  EXPECT_EQ(refused_for(R"({"role":"assistant","tool_calls":[{"type":"mcp"}]})"),
            "messages[0].tool_calls[0].type");
  EXPECT_EQ(refused_for(R"({"role":"assistant","tool_calls":[{"type":"custom","custom":{}}]})"),
            "messages[0].tool_calls[0].custom.name");
  EXPECT_EQ(refused_for(R"({"role":"assistant","content":[{"type":"image_url"}]})"),
            "messages[0].content");
}

TEST_F(ToolFieldsTest, OtherPartiesToolsAreOmitted) {
  limits_.formats.tools = FindToolFormat("hermes");
  for (const char* other :
       {R"({"type":"web_search"})", R"({"type":"custom","custom":{"name":"patch"}})",
        R"({"type":"mcp","server_label":"x"})", R"({"type":"image_generation"})"}) {
    const auto parsed = Tools(std::string(other) + ',' + kBareTool);
    ASSERT_TRUE(parsed.ok()) << other << ": " << parsed.status().message();
    EXPECT_EQ(OrderedJson::parse(TemplateJsonOf(PromptOf(parsed)).tools).size(), 1u) << other;
    const auto none = Tools(other);
    ASSERT_TRUE(none.ok()) << other << ": " << none.status().message();
    EXPECT_EQ(TemplateJsonOf(PromptOf(none)).tools, "") << other;
    EXPECT_EQ(Tools(other, R"("tool_choice":"required")").status().param(), "tool_choice");
  }
  EXPECT_EQ(Tools(R"({"type":"custom","custom":{"name":"patch"}})",
                  R"("tool_choice":{"type":"custom","custom":{"name":"patch"}})")
                .status()
                .param(),
            "tool_choice");
}

TEST_F(ToolFieldsTest, ChoosingAnotherPartysToolIsRefusedByName) {
  const auto refused = Tools(R"({"type":"web_search"})",
                             R"("tool_choice":{"type":"function","function":{"name":"search"}})");
  EXPECT_EQ(refused.status().param(), "tool_choice");
  EXPECT_NE(refused.status().message().find("\"search\""), std::string::npos)
      << refused.status().message();
}

TEST_F(ToolFieldsTest, NamesHaveAtMost128Characters) {
  limits_.formats.tools = FindToolFormat("hermes");
  for (const size_t length : {1u, 64u, 65u, 128u}) {
    const std::string name(length, 'a');
    EXPECT_TRUE(Tools(R"({"type":"function","function":{"name":")" + name + "\"}}").ok()) << length;
    EXPECT_TRUE(Tools(R"({"function":{"name":")" + name + "\"}}").ok()) << length;
  }
}

TEST_F(ToolFieldsTest, ArgumentsOfAnyFormAreAnObjectForTheTemplate) {
  struct Case {
    const char* arguments;  // as a member
    const char* rendered;
  };
  const Case kCases[] = {
      {R"("{\"b\": 1, \"a\": 2}")", R"({"b": 1, "a": 2})"},
      {R"({"b": 1, "a": 2})", R"({"b": 1, "a": 2})"},
      {R"("")", "{}"},
      {"null", "{}"},
      {R"("null")", "{}"},
      {R"(" \n")", "{}"},
      {R"("[]")", "{}"},
      {R"("{\"a\": \"cut")", R"({"INVALID_JSON":"{\"a\": \"cut"})"},
      {R"("{}{}")", R"({"INVALID_JSON":"{}{}"})"},
      {R"("[1]")", R"({"INVALID_JSON":"[1]"})"},
      {R"("\"{}\"")", R"({"INVALID_JSON":"\"{}\""})"},
  };
  for (const Case& one : kCases) {
    const auto parsed = Messages(
        std::string(R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)") +
        one.arguments + "}}]}");
    ASSERT_TRUE(parsed.ok()) << one.arguments << ": " << parsed.status().message();
    EXPECT_EQ(TemplateJsonOf(PromptOf(parsed)).messages,
              std::string(R"([{"role":"assistant","content":"","tool_calls":[{"type":"function",)"
                          R"("function":{"name":"f","arguments":)") +
                  one.rendered + "}}]}]")
        << one.arguments;
  }
}

TEST_F(ToolFieldsTest, AnswersMembersAreAcceptedBack) {
  struct Case {
    const char* message;
    const char* rendered;
  };
  const Case kCases[] = {
      {R"({"role":"assistant","content":null})", R"({"role":"assistant","content":""})"},
      {R"({"role":"assistant"})", R"({"role":"assistant","content":""})"},
      {R"({"role":"assistant","content":[]})", R"({"role":"assistant","content":""})"},
      {R"({"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,
           "function_call":null,"tool_calls":null,"name":null})",
       R"({"role":"assistant","content":""})"},
      {R"({"role":"assistant","content":null,"tool_calls":[],"reasoning_content":"hm"})",
       R"({"role":"assistant","content":"","reasoning_content":"hm"})"},
      {R"({"role":"assistant","content":null,"refusal":"No."})",
       R"({"role":"assistant","content":"No."})"},
      {R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},
           {"type":"output_text","text":"a","annotations":[]},{"type":"refusal","refusal":"b"}]})",
       R"({"role":"assistant","content":"a\nb"})"},
      {R"({"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"custom",
           "custom":{"name":"patch","input":"+a"}}]})",
       R"({"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function",)"
       R"("function":{"name":"patch","arguments":{"input":"+a"}}}]})"},
      {R"({"role":"tool","tool_call_id":"c","content":null})",
       R"({"role":"tool","content":"","tool_call_id":"c"})"},
      {R"({"role":"user","content":"a","tool_calls":[],"refusal":null})",
       R"({"role":"user","content":"a"})"},
  };
  for (const Case& one : kCases) {
    const auto parsed = Messages(one.message);
    ASSERT_TRUE(parsed.ok()) << one.message << ": " << parsed.status().message();
    EXPECT_EQ(TemplateJsonOf(PromptOf(parsed)).messages, "[" + std::string(one.rendered) + "]");
  }
}

TEST_F(ToolFieldsTest, ReasoningFollowsServerParserAndRequestSwitches) {
  limits_.formats.reasoning = FindReasoningFormat("deepseek_r1");
  const auto plain = Chat(R"("include_reasoning":false)");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->answer.reasoning, limits_.formats.reasoning);
  EXPECT_EQ(plain->generate.reasoning, limits_.formats.reasoning);
  EXPECT_FALSE(plain->include_reasoning);
  const auto low = Chat(R"("reasoning_effort":"low","chat_template_kwargs":{"k":1})");
  ASSERT_TRUE(low.ok());
  EXPECT_EQ(TemplateJsonOf(PromptOf(low)).kwargs, R"({"k":1,"reasoning_effort":"low"})");
  const auto none = Chat(R"("reasoning_effort":"none")");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(TemplateJsonOf(PromptOf(none)).kwargs,
            R"({"reasoning_effort":"none","enable_thinking":false})");
  EXPECT_EQ(Chat(R"("reasoning_effort":7)").status().param(), "reasoning_effort");
}

TEST_F(ToolFieldsTest, SpecialTokenMarkersAreDetected) {
  limits_.formats.tools = FindToolFormat("mistral");
  EXPECT_TRUE(Tools(kBareTool)->generate.skip_special_tokens);
  limits_.formats.special_tools = true;
  const auto parsed = Tools(kBareTool);
  ASSERT_TRUE(parsed.ok());
  EXPECT_FALSE(parsed->generate.skip_special_tokens);
  EXPECT_TRUE(parsed->hides_eos);
  const auto shown = Tools(kBareTool, R"("skip_special_tokens":false)");
  EXPECT_FALSE(shown->hides_eos);
  EXPECT_TRUE(Chat(R"("seed":1)")->generate.skip_special_tokens);
}

}  // namespace
}  // namespace diffserve
