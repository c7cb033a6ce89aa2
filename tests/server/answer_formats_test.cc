// SPDX-License-Identifier: Apache-2.0
// The answer formats that a chat template shows by markers of one family.
#include "server/serving/answer/answer_formats.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/temporary_directory.h"
#include "tests/testing/text_fixture.h"

namespace diffserve {
namespace {

TEST(AnswerFormatsTest, TemplateMarkersIdentifyTheToolCallFormat) {
  const std::vector<std::pair<const char*, const char*>> told = {
      {"{{ '<tool_call>\\n' }}{{ tool_call | tojson }}", "hermes"},
      {"<tool_call>\n<function=NAME>\n<parameter=KEY>", "qwen_xml"},
      {"{{ '[TOOL_CALLS]' }}{{ name }}[ARGS]", "mistral"},
      {"{{ '<|python_tag|>' }}", "llama3_json"},
      {"{{ '<|start_header_id|>ipython<|end_header_id|>' }}", "llama3_json"},
      // Other formats with markers of these.
      {"<tool_call>NAME\n<arg_key>KEY</arg_key>", ""},
      {"<tool_calls><tool_call>NAME<tool_sep>", ""},
      {"<seed:tool_call>\n<function=NAME>\n<parameter=KEY>", ""},
      {"<|python_tag|> or <function=NAME>{...}</function>", ""},
      {"{{ messages[0].content }}", ""},
      {"", ""}};
  for (const auto& [text, name] : told) EXPECT_EQ(ToolFormatOf(text), FindToolFormat(name)) << text;
}

TEST(AnswerFormatsTest, TemplateMarkersIdentifyTheReasoningFormat) {
  for (const char* text : {"<|assistant|><think>\n", "{{ content.split('</think>')[-1] }}"}) {
    const ReasoningFormat* const format = ReasoningFormatOf(text);
    ASSERT_NE(format, nullptr) << text;
    EXPECT_EQ(format->begin, "<think>");
  }
  EXPECT_EQ(ReasoningFormatOf("{{ messages[0].content }}"), nullptr);
}

TEST(AnswerFormatsTest, PromptEndShowsWhetherReasoningIsOpen) {
  const ReasoningFormat* const format = FindReasoningFormat("qwen3");
  for (const char* prompt : {"<|assistant|><think>", "<|assistant|><think>\n", "<think> \n\t"})
    EXPECT_TRUE(OpensReasoning(format, prompt)) << prompt;
  for (const char* prompt : {"", "\n", "<|assistant|>", "<think>\n\n</think>\n\n", "<think>Okay",
                             "What is <think>?<|assistant|>", "</think>"})
    EXPECT_FALSE(OpensReasoning(format, prompt)) << prompt;
}

TEST(AnswerFormatsTest, FlagOverridesTheTemplateAndNoneTurnsParsingOff) {
  TemporaryDirectory dir;
  dir.Write("chat_template.jinja", "{{ '[TOOL_CALLS]' }}{{ '<think>' }}");
  const auto loaded = ChatTemplate::Load(dir.path()).value();
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const AnswerFormats told = ChooseFormats({}, loaded.get(), *tokenizer);
  EXPECT_EQ(told.tools, FindToolFormat("mistral"));
  EXPECT_EQ(told.reasoning, ReasoningFormatOf("<think>"));
  EXPECT_FALSE(told.special_tools || told.special_reasoning);
  const AnswerFormats asked = ChooseFormats({"hermes", "motif"}, loaded.get(), *tokenizer);
  EXPECT_EQ(asked.tools, FindToolFormat("hermes"));
  EXPECT_EQ(asked.reasoning, FindReasoningFormat("motif"));
  const AnswerFormats off = ChooseFormats({"none", "none"}, loaded.get(), *tokenizer);
  EXPECT_EQ(off.tools, nullptr);
  EXPECT_EQ(off.reasoning, nullptr);
  const AnswerFormats untold = ChooseFormats({}, nullptr, *tokenizer);
  EXPECT_EQ(untold.tools, nullptr);
  EXPECT_EQ(untold.reasoning, nullptr);
}

}  // namespace
}  // namespace diffserve
