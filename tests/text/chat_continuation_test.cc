// SPDX-License-Identifier: Apache-2.0
// Conversations whose last message is continued. The expected texts come from transformers 4.57:
// apply_chat_template with continue_final_message.
#include <gtest/gtest.h>

#include "engine/text/chat_template.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using json = nlohmann::ordered_json;

constexpr const char* kPlain =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
constexpr const char* kTrimmed =
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} </s>\n{% endfor %}";
constexpr const char* kStripped =
    "{% for m in messages %}[{{ m['role'] }}]\n{{ m['content'].strip() }}\n</s>{% endfor %}";
constexpr const char* kWithCalls =
    "{% for m in messages %}[{{ m.role }}]{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}</s>"
    "{% endfor %}";
constexpr const char* kUserOnly =
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";

Result<RenderedChat> Continued(const char* source, const std::string& asked,
                               const std::string& begun) {
  TemporaryDirectory dir;
  dir.Write("tokenizer_config.json", json{{"chat_template", source}}.dump());
  const auto loaded = ChatTemplate::Load(dir.path());
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  const json messages = {
      {{"role", "user"}, {"content", asked}},
      {{"role", "assistant"}, {"content", begun + std::string(kContinuationMark)}}};
  return (*loaded)->Render({messages.dump(), "{}", false, {}, /*continues_final_message=*/true},
                           nullptr);
}

TEST(ChatContinuationTest, TextEndsWithTheLastMessageAsInTransformers) {
  struct Case {
    const char* source;
    const char* asked;
    const char* begun;
    const char* text;
  };
  const Case kCases[] = {
      {kPlain, "Hi", "I am", "[user]Hi</s>[assistant]I am"},
      {kPlain, "Hi", "I am ", "[user]Hi</s>[assistant]I am "},
      {kPlain, "Hi", "I am\n", "[user]Hi</s>[assistant]I am\n"},
      {kPlain, "Hi", "", "[user]Hi</s>[assistant]"},
      {kPlain, "I am", "I am", "[user]I am</s>[assistant]I am"},
      {kPlain, "CONTINUE_FINAL_MESSAGE_TAG x", "b",
       "[user]CONTINUE_FINAL_MESSAGE_TAG x</s>[assistant]b"},
      {kTrimmed, "Hi", "I am", "[user] Hi </s>\n[assistant] I am"},
      {kTrimmed, "Hi", "I am\n", "[user] Hi </s>\n[assistant] I am\n"},
      {kStripped, "Hi", "I am", "[user]\nHi\n</s>[assistant]\nI am"},
      {kStripped, "Hi", "I am ", "[user]\nHi\n</s>[assistant]\nI am"},
      {kStripped, "Hi", "I am\n", "[user]\nHi\n</s>[assistant]\nI am"},
      {kStripped, "Hi", "", "[user]\nHi\n</s>[assistant]"},
      {kWithCalls, "Hi", "I am", "[user]Hi</s>[assistant]I am"},
      {kWithCalls, "Hi", "", "[user]Hi</s>[assistant]"},
  };
  for (const Case& one : kCases) {
    const Result<RenderedChat> rendered = Continued(one.source, one.asked, one.begun);
    ASSERT_TRUE(rendered.ok()) << rendered.status().message();
    EXPECT_EQ(rendered->text, one.text) << one.source;
  }
}

TEST(ChatContinuationTest, TemplateThatHidesTheLastMessageCannotContinueIt) {
  const Result<RenderedChat> rendered = Continued(kUserOnly, "Hi", "I am");
  ASSERT_FALSE(rendered.ok());
  EXPECT_NE(rendered.status().message().find("continue_final_message"), std::string::npos);
}

}  // namespace
}  // namespace diffserve
