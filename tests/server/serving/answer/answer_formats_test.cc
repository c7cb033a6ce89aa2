// SPDX-License-Identifier: Apache-2.0
// The answer formats that a chat template shows by markers of one family.
#include "server/serving/answer/answer_formats.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/kernels/temporary_directory.h"
#include "tests/testing/server/answer_reading.h"
#include "tests/testing/text/text_fixture.h"

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
  const auto start = [](const char* prompt, const char* continued = "") {
    return StartOfAnswer(FindReasoningFormat("think"), {.prompt = prompt, .continued = continued});
  };
  for (const char* prompt : {"<|assistant|><think>", "<|assistant|><think>\n", "<think> \n\t"})
    EXPECT_EQ(start(prompt), ReasoningStart::kOpen) << prompt;
  for (const char* prompt : {"<think>\n\n</think>\n\n", "</think>"})
    EXPECT_EQ(start(prompt), ReasoningStart::kClosed) << prompt;
  for (const char* prompt :
       {"", "\n", "<|assistant|>", "<think>Okay", "What is <think>?<|assistant|>"})
    EXPECT_EQ(start(prompt), ReasoningStart::kMayOpen) << prompt;
  EXPECT_EQ(StartOfAnswer(nullptr, {.prompt = "<think>"}), ReasoningStart::kClosed);
}

TEST(AnswerFormatsTest, ContinuedTextShowsWhetherReasoningIsOpen) {
  for (const ReasoningFormat& format : ReasoningFormats()) {
    const auto start = [&format](const std::string& before, const std::string& continued) {
      return StartOfAnswer(&format, {.prompt = before + continued, .continued = continued});
    };
    EXPECT_EQ(start("<|assistant|>", "<think>Let me"), ReasoningStart::kOpen);
    EXPECT_EQ(start("", "<think>a</think>b, or <think>"), ReasoningStart::kOpen);
    EXPECT_EQ(start("<|assistant|>", "<think>a</think>It"), ReasoningStart::kClosed);
    EXPECT_EQ(start("<|assistant|>", "a</think>"), ReasoningStart::kClosed);
    EXPECT_EQ(start("<think>a</think>", "It is"), ReasoningStart::kClosed);
    EXPECT_EQ(start("<|assistant|>", "It is"), ReasoningStart::kClosed);
    EXPECT_EQ(start("<|assistant|><think>", "\n"), ReasoningStart::kOpen);
  }
}

// What the parsers of vLLM 0.33.0 give for a stream that comes token by token. Those of whole
// answers differ: after a prompt that closed the reasoning, deepseek_r1 reads reasoning again, and
// qwen3 loses each further closing marker.
TEST(AnswerFormatsTest, ParsersReadAnswersLikeTheirOriginals) {
  constexpr char kUnopened[] = "<|assistant|>\n", kOpened[] = "<|assistant|>\n<think>\n",
                 kClosed[] = "<|assistant|>\n<think>\n\n</think>\n\n";
  const std::vector<std::pair<std::string, std::string>> answers = {
      {"<think>a", "|a"},
      {"<think>a</think>b", "b|a"},
      {"<think>a</think>b</think>c", "b</think>c|a"},
      {"<think>a</think>b<think>c</think>d", "b<think>c</think>d|a"},
      {"a", "|a"},
      {"a</think>b", "b|a"},
      {"a</think>b</think>c", "b</think>c|a"},
      {"</think>b", "b|"}};
  for (const char* name : {"deepseek_r1", "qwen3"}) {
    const AnswerForm form = testing::FormOf("", name);
    const auto read = [&form](const std::string& answer, const PromptEnd& end) {
      return testing::Read(form, answer, testing::Ending::kByModel,
                           StartOfAnswer(form.reasoning, end));
    };
    for (const auto& [answer, reasoned] : answers) {
      for (const char* prompt : {kUnopened, kOpened})
        EXPECT_EQ(read(answer, {.prompt = prompt}), reasoned) << name << prompt;
      EXPECT_EQ(read(answer, {.prompt = kClosed}), answer + "|") << name;
      const std::string off = name == std::string("qwen3") ? answer + "|" : reasoned;
      EXPECT_EQ(read(answer, {.prompt = kUnopened, .thinking_off = true}), off) << name;
    }
  }
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
  EXPECT_EQ(told.tools_by, "chat_template");
  const AnswerFormats asked = ChooseFormats({"hermes", "motif"}, loaded.get(), *tokenizer);
  EXPECT_EQ(asked.tools, FindToolFormat("hermes"));
  EXPECT_EQ(asked.reasoning, FindReasoningFormat("motif"));
  EXPECT_EQ(asked.tools_by, "command_line");
  EXPECT_EQ(asked.reasoning_by, "command_line");
  const AnswerFormats off = ChooseFormats({"none", "none"}, loaded.get(), *tokenizer);
  EXPECT_EQ(off.tools, nullptr);
  EXPECT_EQ(off.reasoning, nullptr);
  const AnswerFormats untold = ChooseFormats({}, nullptr, *tokenizer);
  EXPECT_EQ(untold.tools, nullptr);
  EXPECT_EQ(untold.reasoning, nullptr);
}

}  // namespace
}  // namespace diffserve
