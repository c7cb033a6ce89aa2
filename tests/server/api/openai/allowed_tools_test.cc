// SPDX-License-Identifier: Apache-2.0
// tool_choice of the type allowed_tools in chat bodies: which tools the answer may call.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "server/api/openai/request.h"

namespace diffserve {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kWeatherTool =
    R"({"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
        "properties":{"zip":{"type":"string"}}}}})";
constexpr const char* kBareTool = R"({"type":"function","function":{"name":"now"}})";

class AllowedToolsTest : public ::testing::Test {
 protected:
  Result<OpenAiRequest> Tools(const std::string& tools, const std::string& members) const {
    return ParseChatRequest(
        R"({"messages":[{"role":"user","content":"a"}],"tools":[)" + tools + "]," + members + "}",
        {&limits_, SamplingSpec()});
  }

  FrontendOptions limits_;
};

// The members of a tool_choice that allows the function `name` in a mode.
std::string Allowing(const std::string& mode, const std::string& name) {
  return R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":")" + mode +
         R"(","tools":[{"type":"function","function":{"name":")" + name + R"("}}]}})";
}

TEST_F(AllowedToolsTest, OnlyAllowedToolsCanBeCalledAndAllAreShown) {
  limits_.formats.tools = FindToolFormat("hermes");
  const std::string both = std::string(kWeatherTool) + ',' + kBareTool;
  const auto required = Tools(both, Allowing("required", "now"));
  ASSERT_TRUE(required.ok()) << required.status().message();
  EXPECT_EQ(required->generate.grammar->text,
            Tools(kBareTool, R"("tool_choice":"required")")->generate.grammar->text);
  const auto by_itself = Tools(both, Allowing("auto", "now"));
  ASSERT_TRUE(by_itself.ok()) << by_itself.status().message();
  ASSERT_TRUE(by_itself->generate.grammar);
  EXPECT_EQ(OrderedJson::parse(by_itself->generate.grammar->text),
            OrderedJson::parse(R"({"structures":[
      {"begin":"<tool_call>\n{\"name\": \"now\", \"arguments\": ",
       "schema":{"type":"object"},"end":"}\n</tool_call>"}],
      "triggers":["<tool_call>"]})"));
  const auto beside_form = Tools(
      both, Allowing("auto", "now") + R"(,"response_format":{"type":"json_object"})");
  ASSERT_TRUE(beside_form.ok()) << beside_form.status().message();
  EXPECT_EQ(beside_form->generate.call_grammar->text, by_itself->generate.grammar->text);
  for (const auto* parsed : {&required, &by_itself, &beside_form})
    EXPECT_EQ(std::get<Conversation>(parsed->value().generate.prompts.at(0)).tools.size(), 2u);
}

TEST_F(AllowedToolsTest, AllowingEveryToolConstrainsNothing) {
  for (const ToolFormat& format : ToolFormats()) {
    limits_.formats.tools = &format;
    const auto parsed = Tools(kBareTool, Allowing("auto", "now"));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_FALSE(parsed->generate.grammar);
  }
}

TEST_F(AllowedToolsTest, AllowingSomeToolsNeedsAFormatThatCanBeHeldToThem) {
  const std::string both = std::string(kWeatherTool) + ',' + kBareTool;
  for (const char* name : {"mistral", "qwen_xml", "llama3_json"}) {
    limits_.formats.tools = FindToolFormat(name);
    const Status refused = Tools(both, Allowing("auto", "now")).status();
    EXPECT_EQ(refused.param(), "tool_choice");
    EXPECT_NE(refused.message().find(name), std::string::npos) << refused.message();
    EXPECT_TRUE(Tools(both, Allowing("required", "now")).ok()) << name;
  }
}

TEST_F(AllowedToolsTest, AllowedToolsOfOthersAreOmitted) {
  limits_.formats.tools = FindToolFormat("hermes");
  const auto allowing = [&](const std::string& mode, const std::string& tools) {
    return Tools(kBareTool, R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":")" +
                                mode + R"(","tools":[)" + tools + "]}}");
  };
  const std::string custom = R"({"type":"custom","custom":{"name":"patch"}})";
  EXPECT_FALSE(allowing("auto", custom + ',' + kBareTool)->generate.grammar);
  const auto none = allowing("auto", custom);
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_EQ(none->answer.tools, nullptr);
  EXPECT_EQ(allowing("required", custom).status().param(), "tool_choice");
}

TEST_F(AllowedToolsTest, InvalidAllowedToolsAreRefusedWithTheirPath) {
  limits_.formats.tools = FindToolFormat("hermes");
  const std::string path = "tool_choice.allowed_tools";
  const auto refused = [&](const std::string& members) {
    return Tools(kBareTool,
                 R"("tool_choice":{"type":"allowed_tools","allowed_tools":{)" + members + "}}")
        .status();
  };
  EXPECT_EQ(refused(R"("mode":"none","tools":[{"function":{"name":"now"}}])").param(),
            path + ".mode");
  EXPECT_EQ(refused(R"("tools":[{"function":{"name":"now"}}])").param(), path + ".mode");
  EXPECT_EQ(refused(R"("mode":"auto")").param(), path + ".tools");
  EXPECT_EQ(refused(R"("mode":"auto","tools":[])").param(), path + ".tools");
  const Status unknown = refused(R"("mode":"auto","tools":[{"function":{"name":"now"}},
                                                           {"function":{"name":"then"}}])");
  EXPECT_EQ(unknown.param(), path + ".tools[1].function.name");
  EXPECT_NE(unknown.message().find("\"then\""), std::string::npos) << unknown.message();
  EXPECT_EQ(refused(R"("mode":"auto","tools":[{"type":"function"}])").param(),
            path + ".tools[0].function.name");
}

}  // namespace
}  // namespace diffserve
