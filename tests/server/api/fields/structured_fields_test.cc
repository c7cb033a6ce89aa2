// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/structured_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/anthropic/request.h"
#include "server/api/openai/request.h"
#include "server/api/responses/request.h"

namespace diffserve {
namespace {

using GrammarKind = GrammarSpec::Kind;
using ::testing::HasSubstr;

Result<OpenAiRequest> Parse(const std::string& members) {
  static const FrontendOptions limits;
  return ParseCompletionRequest("{\"prompt\":\"a\"," + members + "}", {&limits, SamplingSpec()});
}

TEST(StructuredFieldsTest, EachFormIsRead) {
  struct Case {
    const char* members;
    GrammarKind kind;
    const char* text;
    const char* param;
  };
  for (const Case& each : std::vector<Case>{
           {R"("response_format":{"type":"json_object"})", GrammarKind::kJsonObject, "",
            "response_format"},
           {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,)"
            R"("schema": {"z":1, "a":[2,"}"]} }})",
            GrammarKind::kJsonSchema, R"({"z":1, "a":[2,"}"]})",
            "response_format.json_schema.schema"},
           {R"("response_format":{"type":"structural_tag","triggers":["<"]})",
            GrammarKind::kStructuralTag, R"({"type":"structural_tag","triggers":["<"]})",
            "response_format"},
           {R"("structured_outputs":{"json":{"b":0,"a":1}})", GrammarKind::kJsonSchema,
            R"({"b":0,"a":1})", "structured_outputs.json"},
           {R"("structured_outputs":{"regex":"a\nb"})", GrammarKind::kRegex, "a\nb",
            "structured_outputs.regex"},
           {R"("structured_outputs":{"choice":["x","y"]})", GrammarKind::kChoice, R"(["x","y"])",
            "structured_outputs.choice"},
           {R"("structured_outputs":{"grammar":"start: \"::=\""})", GrammarKind::kLark,
            "start: \"::=\"", "structured_outputs.grammar"},
           {R"("structured_outputs":{"grammar":"root ::= \"a\""})", GrammarKind::kEbnf,
            "root ::= \"a\"", "structured_outputs.grammar"},
           {R"("structured_outputs":{"json_object":true,"regex":null})", GrammarKind::kJsonObject,
            "", "structured_outputs.json_object"},
           {R"("structured_outputs":{"structural_tag":"{\"triggers\":[]}"})",
            GrammarKind::kStructuralTag, R"({"triggers":[]})", "structured_outputs.structural_tag"},
           {R"("guided_json":"{\"type\":\"null\"}")", GrammarKind::kJsonSchema,
            R"({"type":"null"})", "guided_json"},
           {R"("guided_json":{})", GrammarKind::kJsonSchema, "{}", "guided_json"},
           {R"("guided_regex":"a+")", GrammarKind::kRegex, "a+", "guided_regex"},
           {R"("guided_choice":["a"])", GrammarKind::kChoice, R"(["a"])", "guided_choice"},
           {R"("guided_grammar":"start: /a/")", GrammarKind::kLark, "start: /a/", "guided_grammar"},
           {R"("regex":"a")", GrammarKind::kRegex, "a", "regex"},
           {R"("ebnf":"root ::= \"a\"")", GrammarKind::kEbnf, "root ::= \"a\"", "ebnf"},
           {R"("json_schema":"{}")", GrammarKind::kJsonSchema, "{}", "json_schema"}}) {
    const auto parsed = Parse(each.members);
    ASSERT_TRUE(parsed.ok()) << each.members << parsed.status().message();
    ASSERT_TRUE(parsed->generate.grammar.has_value()) << each.members;
    EXPECT_EQ(parsed->generate.grammar->kind, each.kind) << each.members;
    EXPECT_EQ(parsed->generate.grammar->text, each.text);
    EXPECT_STREQ(parsed->generate.grammar->param, each.param);
  }
}

TEST(StructuredFieldsTest, StructuredOutputsTextRoundTrips) {
  for (const GrammarSpec& spec :
       std::vector<GrammarSpec>{{GrammarKind::kJsonObject, ""},
                                {GrammarKind::kJsonSchema, R"({"z":1, "a":"\"})"},
                                {GrammarKind::kRegex, "\"a\\n"},
                                {GrammarKind::kChoice, R"(["x\"","y"])"},
                                {GrammarKind::kLark, "start: \"::=\""},
                                {GrammarKind::kEbnf, "root ::= \"a\""},
                                {GrammarKind::kStructuralTag, R"({"triggers":[]})"}}) {
    const auto parsed = Parse("\"structured_outputs\":" + StructuredOutputsText(spec));
    ASSERT_TRUE(parsed.ok()) << spec.text << parsed.status().message();
    ASSERT_TRUE(parsed->generate.grammar.has_value()) << spec.text;
    EXPECT_EQ(parsed->generate.grammar->kind, spec.kind) << spec.text;
    EXPECT_EQ(parsed->generate.grammar->text, spec.text);
  }
  EXPECT_EQ(StructuredOutputsText({GrammarKind::kLark, "root ::= \"a\""}), "") << "read as EBNF";
}

TEST(StructuredFieldsTest, FieldsThatAreOffSetNoForm) {
  for (const char* members :
       {R"("response_format":{"type":"text"})", R"("response_format":null)", R"("regex":"")",
        R"("guided_json":null)", R"("structured_outputs":{"json_object":false})",
        R"("structured_outputs":{"whitespace_pattern":null})", R"("json_schema":false)"}) {
    const auto parsed = Parse(members);
    ASSERT_TRUE(parsed.ok()) << members << parsed.status().message();
    EXPECT_FALSE(parsed->generate.grammar.has_value()) << members;
  }
}

TEST(StructuredFieldsTest, RefusalNamesTheField) {
  for (const auto& [members, param] : std::vector<std::pair<const char*, const char*>>{
           {R"("response_format":{"type":"xml"})", "response_format"},
           {R"("response_format":{})", "response_format"},
           {R"("response_format":"json")", "response_format"},
           {R"("response_format":{"type":"json_schema","json_schema":{}})",
            "response_format.json_schema.schema"},
           {R"("response_format":{"type":"json_schema"})", "response_format.json_schema.schema"},
           {R"("guided_regex":3)", "guided_regex"},
           {R"("structured_outputs":{"whitespace_pattern":3})",
            "structured_outputs.whitespace_pattern"},
           {R"("structured_outputs":{"regex":"a","whitespace_pattern":" "})",
            "structured_outputs.whitespace_pattern"},
           {R"("guided_choice":["a"],"disable_any_whitespace":true)", "disable_any_whitespace"},
           {R"("guided_json":{},"guided_whitespace_pattern":" ","disable_any_whitespace":true)",
            "disable_any_whitespace"},
           {R"("structured_outputs":{"json":{},"disable_additional_properties":true})",
            "structured_outputs.disable_additional_properties"},
           {R"("regex":"a","ebnf":"root ::= \"a\"")", "ebnf"},
           {R"("response_format":{"type":"json_object"},"guided_choice":["a"])", "guided_choice"},
           {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs.choice"},
           {R"("max_reasoning_tokens":-1)", "max_reasoning_tokens"},
           {R"("thinking_token_budget":"a")", "thinking_token_budget"}}) {
    const auto parsed = Parse(members);
    EXPECT_FALSE(parsed.ok()) << members;
    EXPECT_EQ(parsed.status().param(), param) << members << parsed.status().message();
  }
}

TEST(StructuredFieldsTest, WhitespaceOfJsonIsRead) {
  struct Case {
    const char *members, *pattern, *param;
  };
  for (const Case& each :
       {Case{R"("guided_json":{},"guided_whitespace_pattern":"[ ]?")", "[ ]?",
             "guided_whitespace_pattern"},
        Case{R"("guided_json":{},"guided_whitespace_pattern":"")", "", "guided_whitespace_pattern"},
        Case{R"("guided_json":{},"disable_any_whitespace":true)", "", "disable_any_whitespace"},
        Case{R"("structured_outputs":{"json":{},"whitespace_pattern":" "})", " ",
             "structured_outputs.whitespace_pattern"},
        Case{R"("structured_outputs":{"json":{},"disable_any_whitespace":true})", "",
             "structured_outputs.disable_any_whitespace"},
        Case{R"("response_format":{"type":"json_object"},"disable_any_whitespace":true)", "",
             "disable_any_whitespace"}}) {
    const auto parsed = Parse(each.members);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->generate.whitespace, each.pattern) << each.members;
    EXPECT_STREQ(parsed->generate.names.whitespace, each.param);
    const auto again = Parse(
        "\"structured_outputs\":" +
        StructuredOutputsText(*parsed->generate.grammar, parsed->generate.whitespace));
    EXPECT_EQ(again->generate.whitespace, each.pattern) << "a rendered request keeps it";
  }
  for (const char* members : {R"("guided_json":{},"guided_whitespace_pattern":null)",
                              R"("structured_outputs":{"json":{},"disable_any_whitespace":false})"})
    EXPECT_FALSE(Parse(members)->generate.whitespace) << members;
}

TEST(StructuredFieldsTest, ReasoningBudgetIsRead) {
  EXPECT_EQ(Parse(R"("max_reasoning_tokens":7)")->generate.max_reasoning_tokens, 7);
  EXPECT_EQ(Parse(R"("thinking_token_budget":0)")->generate.max_reasoning_tokens, 0);
  EXPECT_EQ(Parse(R"("n":1)")->generate.max_reasoning_tokens, -1);
}

TEST(StructuredFieldsTest, MemberTextIsFoundAsWritten) {
  constexpr std::string_view kObject =
      " { \"a\" : [1, {\"b\":\"}\\\"\"}] ,\"\\u0062\":{ \"a\": 3 } , \"c\":-1.5e3 , \"a\":\"x\" } ";
  EXPECT_EQ(MemberText(kObject, "a"), "\"x\"");
  EXPECT_EQ(MemberText(kObject, "b"), "{ \"a\": 3 }");
  EXPECT_EQ(MemberText(kObject, "c"), "-1.5e3");
  EXPECT_EQ(MemberText(kObject, "d"), "");
  EXPECT_EQ(MemberText("{}", "a"), "");
}

// Each API generates the properties in the order in which the client wrote them.
TEST(StructuredFieldsTest, SchemaKeepsTheOrderOfItsPropertiesInEveryApi) {
  FrontendOptions limits;
  limits.formats.tools = FindToolFormat("hermes");
  const ReadContext context{&limits, SamplingSpec()};
  const std::string schema = R"({"type": "object", "properties": {"z": {}, "a": {}}})";
  const std::string message = R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],)";
  for (const std::string& members :
       {R"("output_config":{"format":{"type":"json_schema","schema":)" + schema + "}}",
        R"("tool_choice":{"type":"tool","name":"f"},"tools":[{"name":"f","input_schema":)" +
            schema + "}]"}) {
    const auto parsed = ParseMessagesRequest(message + members + "}", context);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->generate.grammar->text, schema);
  }
  for (const std::string& members :
       {R"("text":{"format":{"type":"json_schema","name":"a","schema":)" + schema + "}}",
        R"("tool_choice":{"type":"function","name":"f"},"tools":[{"type":"function","name":"f",)"
        R"("parameters":)" +
            schema + "}]"}) {
    const auto parsed = ParseResponsesRequest(R"({"input":"a",)" + members + "}", context);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const auto chat = ChatOf(*parsed, nullptr, context);
    ASSERT_TRUE(chat.ok()) << chat.status().message();
    EXPECT_EQ(chat->request.generate.grammar->text, schema);
  }
}

}  // namespace
}  // namespace diffserve
