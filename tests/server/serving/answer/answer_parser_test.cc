// SPDX-License-Identifier: Apache-2.0
// An answer's text is parsed into content, reasoning and calls, however it is cut.
#include "server/serving/answer/answer_parser.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/serving/answer/answer_message.h"
#include "server/serving/tools/call_scanner.h"
#include "tests/testing/server/answer_reading.h"

namespace diffserve {
namespace {

using testing::Ending;
using testing::FormOf;
using testing::Read;
using testing::ReadIn;
using testing::ReadInReasoning;

TEST(AnswerParserTest, WithoutAFormTextIsContent) {
  EXPECT_EQ(Read({}, " <think>a</think> <tool_call>{} \n"), " <think>a</think> <tool_call>{} \n|");
}

TEST(AnswerParserTest, HermesCallsAreFound) {
  const AnswerForm form = FormOf("hermes");
  EXPECT_EQ(
      Read(form, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {}]}}\n</tool_call>"),
      "||f({\"a\": [1, {}]})");
  EXPECT_EQ(
      Read(form,
           "Let me see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
           "<tool_call>{\"arguments\":{\"b\":\"}\"},\"id\":\"7\",\"name\":\"g\"}</tool_call>"),
      "Let me see.||f({})|g({\"b\":\"}\"})");
  EXPECT_EQ(Read(form, "<tool_call>{\"name\":\"f\"}</tool_call> done"), "done||f({})");
  EXPECT_EQ(
      Read(form, "<tool_call>{\"name\":\"\\u0066\",\"arguments\":{\"x\":\"\\\"<tool_call>\"}}"),
      "||f({\"x\":\"\\\"<tool_call>\"})");
}

TEST(AnswerParserTest, TextThatIsNotACallIsContent) {
  const AnswerForm form = FormOf("hermes");
  for (const char* text :
       {"a < b", "<tool", "<tool_cal", " x <tool_call>", "<tool_call>{",
        "<tool_call>[1]</tool_call>", "<tool_call>{\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":7,\"arguments\":{}}", "<tool_call>{\"name\":\"f\",\"arguments\":[1]}",
        "<tool_call>{\"name\":\"\",\"arguments\":{}}", "<tool_call>call f</tool_call>",
        "</tool_call>", "<<tool_call", "a\n", "<tool_call> {\"name\" \"f\"",
        "<tool_call>{\"name\":\"f\",\"arguments\":7}"}) {
    EXPECT_EQ(Read(form, text), std::string(text) + "|");
  }
  EXPECT_EQ(Read(form, "<tool_call>oh <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"),
            "<tool_call>oh||f({})");
}

TEST(AnswerParserTest, CutOrMalformedCallKeepsTheReceivedText) {
  const AnswerForm form = FormOf("hermes");
  EXPECT_EQ(Read(form, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"x"), "||f({\"a\": \"x)");
  EXPECT_EQ(Read(form, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\" 1}} rest"),
            "1}} rest||f({\"a\" )");
}

TEST(AnswerParserTest, BareJsonAtTheBeginningIsACall) {
  const AnswerForm form = FormOf("llama3_json");
  EXPECT_EQ(Read(form, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"), "||f({\"a\": 1})");
  EXPECT_EQ(
      Read(form,
           "<|python_tag|>{\"name\":\"f\",\"parameters\":{}};{\"name\":\"g\",\"parameters\":{}}"),
      "||f({})|g({})");
  EXPECT_EQ(Read(form, "\n{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}\n"), "||f({})");
  for (const char* text :
       {"{\"name\": \"Bob\", \"age\": 5}", "{\"answer\": [1]} and more",
        "Say {\"name\": \"f\", \"parameters\": {}}", "<|python_tag|>print(1)", "{"}) {
    EXPECT_EQ(Read(form, text), std::string(text) + "|");
  }
}

TEST(AnswerParserTest, MistralCallsAreAList) {
  const AnswerForm form = FormOf("mistral");
  EXPECT_EQ(Read(form, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"a\":1}}, {\"name\":\"g\"}]"),
            "||f({\"a\":1})|g({})");
  EXPECT_EQ(Read(form, "[TOOL_CALLS] [ ]"), "[TOOL_CALLS] [ ]|");
  EXPECT_EQ(Read(form, "[TOOL_CALLS][7]"), "[TOOL_CALLS][7]|");
  EXPECT_EQ(Read(form, "[1, 2]"), "[1, 2]|");
  EXPECT_EQ(Read(form, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, oh"), ", oh||f({})");
}

TEST(AnswerParserTest, XmlCallsBecomeJson) {
  AnswerForm form = FormOf("qwen_xml");
  form.parameter_types = std::make_shared<ParameterTypes>(ParameterTypes{
      {{"f", "zip"}, ParameterType::kString}, {{"f", "n"}, ParameterType::kInteger}});
  EXPECT_EQ(
      Read(form,
           "<tool_call>\n<function=f>\n<parameter=zip>\n01234\n</parameter>\n"
           "<parameter=n>\n5\n</parameter>\n<parameter=code>\nif a < \"b\":\n  x\n</parameter>\n"
           "</function>\n</tool_call>"),
      "||f({\"zip\": \"01234\", \"n\": 5, \"code\": \"if a < \\\"b\\\":\\n  x\"})");
  EXPECT_EQ(
      Read(form,
           "ok <tool_call><function=g></function></tool_call><tool_call><function=h></function>"),
      "ok||g({})|h({})");
  EXPECT_EQ(Read(form, "<tool_call>{\"name\":\"f\"}"), "<tool_call>{\"name\":\"f\"}|");
  EXPECT_EQ(Read(form, "<tool_call><function=>"), "<tool_call><function=>|");
}

TEST(AnswerParserTest, ReasoningIsSeparatedFromContent) {
  for (const ReasoningFormat& format : ReasoningFormats()) {
    const AnswerForm form = FormOf("", format.name);
    EXPECT_EQ(ReadInReasoning(form, "I think\n</think>\n\nSo."), "So.|I think");
    EXPECT_EQ(ReadInReasoning(form, "<think>\nI think</think>So. </think>"),
              "So. </think>|I think");
    EXPECT_EQ(ReadInReasoning(form, "cut <th"), "|cut <th");
    EXPECT_EQ(Read(form, "So. </think>"), "So. </think>|");
    EXPECT_EQ(Read(form, "<think>I think</think>So.", Ending::kByModel, ReasoningStart::kClosed),
              "<think>I think</think>So.|");
    EXPECT_EQ(Read(form, "<think>\nI think</think>So."), "So.|I think");
  }
  EXPECT_EQ(Read(FormOf("", "qwen3"), "\n<think>a < b\n\nc</think>\nd"), "d|a < b\n\nc");
  EXPECT_EQ(Read(FormOf("", "qwen3"), "No <think>a</think>"), "No <think>a</think>|");
  EXPECT_EQ(Read(FormOf("", "qwen3"), "<think></think>"), "|");
  EXPECT_EQ(Read(FormOf("hermes", "qwen3"),
                 "<think>Call <tool_call>?</think>\n<tool_call>{\"name\":\"f\"}</tool_call>"),
            "|Call <tool_call>?|f({})");
  EXPECT_EQ(ReadInReasoning(FormOf("motif", "motif"),
                            "hm</think><tool_call>{\"name\":\"f\"}</tool_call>"),
            "|hm|f({})");
}

TEST(AnswerParserTest, ForcedCallIsTheWholeAnswer) {
  AnswerForm form = FormOf("hermes", "deepseek_r1");
  form.forced_call = true;
  form.forced_name = "f";
  EXPECT_EQ(ReadInReasoning(form, "hm</think>\n{\"a\": \"<tool_call>\"}"),
            "|hm|f({\"a\": \"<tool_call>\"})");
  EXPECT_EQ(ReadInReasoning(form, "hm"), "|hm");
  form.reasoning = nullptr;
  EXPECT_EQ(Read(form, "{\"a\":"), "||f({\"a\":)");
  form.forced_name.clear();
  EXPECT_EQ(
      Read(form,
           "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {\"x\":[]}}]"),
      "||f({})|g({\"x\":[]})");
  form.reasoning = FindReasoningFormat("qwen3");
  EXPECT_EQ(Read(form, "<think>a</think>[{\"name\": \"f\", \"arguments\": {}}]"), "|a|f({})");
  EXPECT_EQ(Read(form, " <think>a</think>\n\n[{\"name\": \"f\", \"arguments\": {}}]"), "|a|f({})");
  EXPECT_EQ(Read(form, " [{\"name\": \"f\", \"arguments\": {}}]"), "||f({})");
}

TEST(AnswerParserTest, WithoutParallelCallsTheFirstOneCounts) {
  AnswerForm form = FormOf("hermes");
  form.parallel = false;
  const std::string call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  EXPECT_EQ(Read(form, "a " + call + call + " b"), "a||f({})");
}

TEST(AnswerParserTest, HeldTextAndCallsAreLimited) {
  const std::string spaces(kMaxHeldCallBytes + 100, ' ');
  EXPECT_EQ(ReadIn(FormOf("hermes"), {"<tool_call>" + spaces + "x"}),
            "<tool_call>" + spaces + "x|");
  const std::string name(kMaxCalledNameBytes + 1, 'n');
  const std::string call = "<tool_call>{\"name\":\"" + name;
  EXPECT_EQ(ReadIn(FormOf("hermes"), {call}), call + "|");
  const std::string value(kMaxHeldCallBytes + 1, 'v');
  EXPECT_EQ(ReadIn(FormOf("qwen_xml"), {"<tool_call><function=f><parameter=p>" + value + "w"}),
            "vw||f({)");
  std::string many;
  for (int i = 0; i < AnswerParser::kMaxCalls + 2; ++i)
    many += "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  AnswerParser parser(FormOf("hermes"));
  std::vector<AnswerPart> parts;
  parser.Push(many, &parts);
  EXPECT_EQ(parser.num_calls(), AnswerParser::kMaxCalls);
}

TEST(AnswerParserTest, ArgumentsAreStreamedAsTheyArrive) {
  AnswerParser parser(FormOf("hermes"));
  std::vector<AnswerPart> parts;
  parser.Push("<tool_call>{\"name\":\"f\",\"arguments\":{\"text\":\"abc", &parts);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].text, "f");
  EXPECT_EQ(parts[1].text, "{\"text\":\"abc");
  parts.clear();
  parser.Push("d", &parts);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].kind, AnswerPart::Kind::kToolArguments);
}

TEST(AnswerParserTest, EveryFormatParsesIndependentlyOfTheCuts) {
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "[TOOL_CALLS]",
                                          "<think>",
                                          "</think>",
                                          "{\"name\":\"f\"",
                                          "}",
                                          ",\"arguments\":{\"a\":1}",
                                          "[",
                                          "]",
                                          " ",
                                          "\n",
                                          "x",
                                          "<",
                                          "<|python_tag|>",
                                          "<function=f>",
                                          "[ARGS]",
                                          ", f",
                                          "<parameter=p>",
                                          "1",
                                          "</parameter>",
                                          "</function>",
                                          ";",
                                          "\xE2\x82\xAC"};
  uint64_t state = 1;
  const auto draw = [&state](size_t count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state >> 33) % count;
  };
  for (int round = 0; round < 150; ++round) {
    std::string text;
    for (size_t i = 0; i < 8; ++i) text += words[draw(words.size())];
    for (const ToolFormat& tools : ToolFormats()) {
      for (const char* reasoning : {"", "qwen3"}) {
        AnswerForm form = FormOf("", reasoning);
        form.tools = &tools;
        form.parallel = draw(2) == 0;
        Read(form, text);
        Read(form, text, Ending::kCut);
      }
    }
  }
}

TEST(AnswerMessageTest, IdsAreStableAndDifferent) {
  const std::string id = CallId({"chatcmpl-1", 5, 0, 0}, "call_");
  EXPECT_EQ(id.size(), 5u + 24u);
  EXPECT_EQ(id, CallId({"chatcmpl-1", 5, 0, 0}, "call_"));
  EXPECT_NE(id, CallId({"chatcmpl-1", 5, 0, 1}, "call_"));
  EXPECT_NE(id, CallId({"chatcmpl-1", 5, 1, 0}, "call_"));
  EXPECT_NE(id, CallId({"chatcmpl-2", 5, 0, 0}, "call_"));
  EXPECT_EQ(ShortCallId({"chatcmpl-1", 5, 0, 0}).size(), 9u);
}

}  // namespace
}  // namespace diffserve
