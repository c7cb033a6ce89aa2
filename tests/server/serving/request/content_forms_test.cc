// SPDX-License-Identifier: Apache-2.0
// The form in which chat templates take contents, on templates written like those of well-known
// models.
#include "server/serving/request/content_forms.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/chat_template.h"
#include "server/serving/request/conversation.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

std::unique_ptr<ChatTemplate> LoadSource(const nlohmann::json& source) {
  TemporaryDirectory dir;
  dir.Write("tokenizer_config.json", nlohmann::json{{"chat_template", source}}.dump());
  auto loaded = ChatTemplate::Load(dir.path());
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return std::move(loaded).value();
}

constexpr char kTexts[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
constexpr char kTrimmedTexts[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}";
constexpr char kEachPart[] =
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}"
    "{% endfor %}";
constexpr char kTypedParts[] =
    "{% for m in messages %}<{{ m['role'] }}>{% for p in m['content'] | selectattr('type', "
    "'equalto', 'text') %}{{ p['text'] }}{% endfor %}{% endfor %}";
constexpr char kBoth[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endif %}"
    "{% endfor %}";
constexpr char kFirstPart[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}";
constexpr char kFirstPartOrText[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{{ m.content[0].text }}{% endif %}{% endfor %}";
constexpr char kPartsOfUsers[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{% for p in m.content %}"
    "{{ p.text }}{% endfor %}{% elif m.role == 'assistant' %}{{ ' ' + m.content[0]['text'] }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}";
constexpr char kJsonOfTools[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'tool' %}{{ m.content | tojson }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
constexpr char kNoTools[] =
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role') }}{% endif %}<{{ m.role }}>{% for p in m.content %}"
    "{{ p.text }}{% endfor %}{% endfor %}";

TEST(ContentFormsTest, TemplateShowsWhichFormItTakes) {
  struct Case {
    const char* source;
    ContentForm user, assistant, system, tool;
  };
  const Case kCases[] = {
      {kTexts, ContentForm::kText, ContentForm::kText, ContentForm::kText, ContentForm::kText},
      {kTrimmedTexts, ContentForm::kText, ContentForm::kText, ContentForm::kText,
       ContentForm::kText},
      {kEachPart, ContentForm::kParts, ContentForm::kParts, ContentForm::kParts,
       ContentForm::kParts},
      {kTypedParts, ContentForm::kParts, ContentForm::kParts, ContentForm::kParts,
       ContentForm::kParts},
      {kBoth, ContentForm::kTextOrParts, ContentForm::kTextOrParts, ContentForm::kTextOrParts,
       ContentForm::kTextOrParts},
      {kFirstPart, ContentForm::kOnePart, ContentForm::kOnePart, ContentForm::kOnePart,
       ContentForm::kOnePart},
      {kFirstPartOrText, ContentForm::kText, ContentForm::kText, ContentForm::kText,
       ContentForm::kText},
      {kPartsOfUsers, ContentForm::kParts, ContentForm::kOnePart, ContentForm::kText,
       ContentForm::kText},
      {kJsonOfTools, ContentForm::kParts, ContentForm::kParts, ContentForm::kParts,
       ContentForm::kText},
      {kNoTools, ContentForm::kParts, ContentForm::kParts, ContentForm::kParts, ContentForm::kText},
  };
  for (const Case& one : kCases) {
    const RoleForms forms = ContentFormsOf(LoadSource(one.source).get()).without_tools;
    EXPECT_EQ(forms.Of("user"), one.user) << one.source;
    EXPECT_EQ(forms.Of("assistant"), one.assistant) << one.source;
    EXPECT_EQ(forms.Of("system"), one.system) << one.source;
    EXPECT_EQ(forms.Of("tool"), one.tool) << one.source;
  }
}

TEST(ContentFormsTest, ConversationsWithToolsHaveFormsOfTheirOwn) {
  const auto loaded = LoadSource({{{"name", "default"}, {"template", kTexts}},
                                  {{"name", "tool_use"}, {"template", kEachPart}}});
  const ContentForms forms = ContentFormsOf(loaded.get());
  EXPECT_EQ(forms.without_tools.Of("user"), ContentForm::kText);
  EXPECT_EQ(forms.with_tools.Of("user"), ContentForm::kParts);
}

TEST(ContentFormsTest, FlagOverridesWhatTheTemplateShows) {
  const auto loaded = LoadSource(kTexts);
  EXPECT_EQ(ChooseContentForms("auto", loaded.get()).without_tools.Of("user"), ContentForm::kText);
  EXPECT_EQ(ChooseContentForms("openai", loaded.get()).without_tools.Of("tool"),
            ContentForm::kParts);
  EXPECT_EQ(ChooseContentForms("string", LoadSource(kEachPart).get()).with_tools.Of("user"),
            ContentForm::kText);
  EXPECT_EQ(ContentFormsOf(nullptr).without_tools.Of("user"), ContentForm::kText);
}

// The prompt of a user's message with these texts.
std::string PromptOf(const char* source, const std::vector<std::string>& texts) {
  const auto loaded = LoadSource(source);
  Conversation conversation;
  conversation.messages.push_back({.role = "user", .content = {}});
  conversation.messages.back().SetParts(texts);
  const TemplateJson json = TemplateJsonOf(conversation, ContentFormsOf(loaded.get()));
  const auto rendered = loaded->Render({.messages_json = json.messages}, nullptr);
  EXPECT_TRUE(rendered.ok()) << rendered.status().message();
  return rendered->text;
}

TEST(ContentFormsTest, EachTextIsShownWhicheverFormTheClientSent) {
  for (const char* source : {kTexts, kEachPart, kTypedParts, kBoth, kFirstPart, kFirstPartOrText})
    EXPECT_EQ(PromptOf(source, {"one"}), "<user>one") << source;
  for (const char* source : {kTexts, kFirstPart, kFirstPartOrText})
    EXPECT_EQ(PromptOf(source, {"one", "two"}), "<user>one\ntwo") << source;
  // The template itself joins the parts.
  for (const char* source : {kEachPart, kTypedParts, kBoth})
    EXPECT_EQ(PromptOf(source, {"one", "", "two"}), "<user>onetwo") << source;
}

TEST(ContentFormsTest, PartsKeepNewlinesOfTheirOwn) {
  Message message{.role = "user", .content = {}};
  message.SetParts({"a\nb", "", "c\n"});
  EXPECT_EQ(message.content, "a\nb\n\nc\n");
  Conversation conversation;
  conversation.messages = {message};
  const RoleForms parts(ContentForm::kParts);
  EXPECT_EQ(TemplateJsonOf(conversation, {parts, parts}).messages,
            R"([{"role":"user","content":[{"type":"text","text":"a\nb"},{"type":"text","text":""},)"
            R"({"type":"text","text":"c\n"}]}])");
}

TEST(ContentFormsTest, ContinuedMessageEndsInItsLastPart) {
  Conversation conversation;
  conversation.messages.push_back({.role = "assistant", .content = {}});
  conversation.messages.back().SetParts({"one", "two"});
  ContinueFinalMessage(&conversation);
  const auto loaded = LoadSource(kEachPart);
  const TemplateJson json = TemplateJsonOf(conversation, ContentFormsOf(loaded.get()));
  const auto rendered = loaded->Render(
      {.messages_json = json.messages, .continues_final_message = true}, nullptr);
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  EXPECT_EQ(rendered->text, "<assistant>onetwo");
}

TEST(ContentFormsTest, AssistantThatOnlyCallsHasNoPart) {
  Conversation conversation;
  conversation.messages.push_back({.role = "assistant", .content = {}});
  conversation.messages.back().calls.push_back({"c", "f", "{}"});
  const RoleForms parts(ContentForm::kParts);
  EXPECT_EQ(TemplateJsonOf(conversation, {parts, parts}).messages,
            R"([{"role":"assistant","content":[],"tool_calls":[{"id":"c","type":"function",)"
            R"("function":{"name":"f","arguments":{}}}]}])");
}

}  // namespace
}  // namespace diffserve
