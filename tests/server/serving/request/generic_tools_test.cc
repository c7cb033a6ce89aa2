// SPDX-License-Identifier: Apache-2.0
// Tools for a model whose chat template shows none: what the model sees, how its calls are read,
// and how a conversation goes on.
#include "server/serving/request/generic_tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/text/chat_template.h"
#include "server/serving/answer/answer_formats.h"
#include "server/serving/answer/answer_plan.h"
#include "tests/testing/server/answer_reading.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using testing::FormOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Read;
using ::testing::StartsWith;

constexpr char kPlain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
constexpr char kUsersOnly[] =
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
constexpr char kWithTools[] =
    "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}";

std::unique_ptr<ChatTemplate> TemplateOf(const std::string& source) {
  TemporaryDirectory dir;
  dir.Write("chat_template.jinja", source);
  return ChatTemplate::Load(dir.path()).value();
}

std::string ChosenFor(const std::string& source, const std::string& flag = "auto") {
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const auto chat_template = TemplateOf(source);
  const ToolFormat* tools = ChooseFormats({flag, "auto"}, chat_template.get(), *tokenizer).tools;
  return tools == nullptr ? "none" : std::string(tools->name);
}

Tool Weather() {
  Tool tool;
  tool.name = "weather";
  tool.description = "Tells the weather.";
  tool.parameters_json = R"({"type":"object","properties":{"city":{"type":"string"}}})";
  tool.has_type = true;
  return tool;
}

Conversation Asking(std::vector<Message> messages = {{.role = "user", .content = "Oslo?"}}) {
  Conversation conversation;
  conversation.messages = std::move(messages);
  conversation.tools = {Weather()};
  return conversation;
}

// "role: content" of each message.
std::vector<std::string> Written(Conversation conversation, bool shows_system = true) {
  WriteToolsAsText(shows_system, &conversation);
  EXPECT_TRUE(conversation.tools.empty());
  std::vector<std::string> shown;
  for (const Message& message : conversation.messages) {
    EXPECT_TRUE(message.calls.empty());
    shown.push_back(message.role + ": " + message.content);
  }
  return shown;
}

TEST(GenericToolsTest, AutoChoosesItForATemplateWithoutTools) {
  EXPECT_EQ(ChosenFor(kPlain), "generic");
  EXPECT_EQ(ChosenFor(kUsersOnly), "generic");
  EXPECT_EQ(ChosenFor(kPlain, "none"), "none");
  EXPECT_EQ(ChosenFor(kPlain, "hermes"), "hermes");
  EXPECT_EQ(ChosenFor(std::string(kPlain) + "{{ '<tool_call>' }}"), "hermes");
  EXPECT_EQ(ChosenFor(kWithTools), "none") << "tools are shown, in a form that is unknown";
  EXPECT_EQ(ChosenFor(kWithTools, "generic"), "generic");
}

TEST(GenericToolsTest, ToolsAreShownInTheSystemPrompt) {
  const std::vector<std::string> shown = Written(Asking());
  ASSERT_EQ(shown.size(), 2u);
  EXPECT_THAT(shown[0], StartsWith("system: You can call tools:\n<tools>\n"));
  EXPECT_THAT(shown[0], HasSubstr(R"({"name":"weather","description":"Tells the weather.",)"
                                  R"("parameters":{"type":"object","properties":)"
                                  R"({"city":{"type":"string"}}}})"));
  EXPECT_EQ(shown[1], "user: Oslo?");
}

TEST(GenericToolsTest, OwnSystemPromptStaysInFront) {
  for (const char* role : {"system", "developer"}) {
    const std::vector<std::string> shown = Written(
        Asking({{.role = role, .content = "Be brief."}, {.role = "user", .content = "Oslo?"}}));
    ASSERT_EQ(shown.size(), 2u);
    EXPECT_THAT(shown[0], StartsWith(std::string(role) + ": Be brief.\n\nYou can call tools"));
  }
}

TEST(GenericToolsTest, FirstUserGetsTheToolsWhereNoSystemPromptIsShown) {
  Conversation asking = Asking();
  asking.messages[0].SetParts({"Oslo?", "Now?"});
  const size_t before = asking.messages[0].breaks[0];
  WriteToolsAsText(/*shows_system=*/false, &asking);
  ASSERT_EQ(asking.messages.size(), 1u);
  const Message& user = asking.messages[0];
  EXPECT_THAT(user.content, StartsWith("You can call tools"));
  EXPECT_TRUE(user.content.ends_with("\n\nOslo?\nNow?"));
  EXPECT_EQ(user.content.substr(user.breaks[0]), "\nNow?");
  EXPECT_GT(user.breaks[0], before);
}

// A call goes back in the form in which it is read.
TEST(GenericToolsTest, HistoryIsText) {
  Conversation conversation = Asking(
      {{.role = "user", .content = "Oslo and Rome?"},
       {.role = "assistant",
        .content = "I look.",
        .calls = {{"1", "weather", R"({"city":"Oslo"})"}, {"2", "weather", R"({"city":"Rome"})"}}},
       {.role = "tool", .content = "cold", .tool_call_id = "1"},
       {.role = "tool", .content = "warm", .tool_call_id = "2"},
       {.role = "user", .content = "And so?"},
       {.role = "user", .content = "Well?"}});
  conversation.tools.clear();
  const std::vector<std::string> shown = Written(conversation);
  const std::string oslo =
      "<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Oslo\"}}"
      "\n</tool_call>";
  const std::string rome =
      "<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}"
      "\n</tool_call>";
  EXPECT_THAT(shown,
              ElementsAre("user: Oslo and Rome?", "assistant: I look.\n" + oslo + "\n" + rome,
                          "user: <tool_response>\ncold\n</tool_response>\n"
                          "<tool_response>\nwarm\n</tool_response>\nAnd so?\nWell?"));
  EXPECT_EQ(Read(FormOf("generic"), "I look.\n" + oslo + "\n" + rome),
            R"(I look.||weather({"city":"Oslo"})|weather({"city":"Rome"}))");
}

TEST(GenericToolsTest, AnswersAreReadWholeAndInPieces) {
  const AnswerForm form = FormOf("generic");
  EXPECT_EQ(Read(form, "It is cold."), "It is cold.|");
  EXPECT_EQ(Read(form, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"),
            "||f({})");
  EXPECT_EQ(Read(form, "a <tool_call>no call"), "a <tool_call>no call|");
  AnswerForm single = form;
  single.parallel = false;
  EXPECT_EQ(Read(single,
                 "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}"
                 "</tool_call>"),
            "||f({})");
}

TEST(GenericToolsTest, EveryChoiceIsPlanned) {
  AnswerFormats formats;
  formats.tools = FindToolFormat("generic");
  using Choice = ToolChoice::Kind;
  const auto plan = [&formats](Choice kind, const Tool& tool = Weather()) {
    ToolChoice choice;
    choice.kind = kind;
    if (kind == Choice::kNamed) choice.name = tool.name;
    return PlanAnswer({tool}, choice, formats);
  };
  const auto by_itself = plan(Choice::kAuto);
  ASSERT_TRUE(by_itself.ok()) << by_itself.status().message();
  EXPECT_EQ(by_itself->form.tools, formats.tools);
  EXPECT_FALSE(by_itself->grammar);
  EXPECT_EQ(plan(Choice::kNone)->form.tools, nullptr);
  EXPECT_TRUE(plan(Choice::kRequired)->form.forced_call);
  EXPECT_EQ(plan(Choice::kNamed)->form.forced_name, "weather");
  Tool strict = Weather();
  strict.strict = true;
  EXPECT_TRUE(plan(Choice::kAuto, strict)->grammar);
}

TEST(GenericToolsTest, RefusalNamesTheFlag) {
  ToolChoice by_itself;
  by_itself.kind = ToolChoice::Kind::kAuto;
  const auto plan = PlanAnswer({Weather()}, by_itself, {});
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().message(), HasSubstr("start with --tool-call-parser (hermes, "));
  EXPECT_THAT(plan.status().message(), HasSubstr("generic"));
}

}  // namespace
}  // namespace diffserve
