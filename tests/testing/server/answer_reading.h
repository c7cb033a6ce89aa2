// SPDX-License-Identifier: Apache-2.0
// For tests of AnswerParser: parses a text, and checks that the result does not depend on how the
// text is split.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/serving/answer/answer_message.h"
#include "server/serving/answer/answer_parser.h"

namespace diffserve::testing {

enum class Ending { kByModel, kCut };

inline AnswerForm FormOf(std::string_view tools, std::string_view reasoning = "") {
  AnswerForm form;
  form.tools = FindToolFormat(tools);
  form.reasoning = FindReasoningFormat(reasoning);
  return form;
}

// The parsed parts as "content|reasoning|name(arguments)...".
inline std::string Shown(const AnswerMessage& message) {
  std::string text = message.content + '|' + message.reasoning;
  for (const AnswerCall& call : message.calls) text += '|' + call.name + '(' + call.arguments + ')';
  return text;
}

inline std::string ReadIn(const AnswerForm& form, const std::vector<std::string>& pieces,
                          Ending ending = Ending::kByModel,
                          ReasoningStart start = ReasoningStart::kMayOpen) {
  AnswerParser parser(form, start);
  AnswerMessage message;
  int calls = 0;
  const auto take = [&](std::vector<AnswerPart> parts) {
    for (const AnswerPart& part : parts) {
      if (part.kind != AnswerPart::Kind::kToolCall) continue;
      EXPECT_EQ(part.call, calls++);
    }
    message.Add(std::move(parts));
  };
  for (const std::string& piece : pieces) {
    std::vector<AnswerPart> parts;
    parser.Push(piece, &parts);
    take(std::move(parts));
  }
  std::vector<AnswerPart> parts;
  parser.Finish(ending == Ending::kCut, &parts);
  take(std::move(parts));
  EXPECT_EQ(parser.num_calls(), calls);
  return Shown(message);
}

// Parses the text in one piece, byte by byte, and split in two at every position; all must agree.
inline std::string Read(const AnswerForm& form, const std::string& text,
                        Ending ending = Ending::kByModel,
                        ReasoningStart start = ReasoningStart::kMayOpen) {
  const std::string whole = ReadIn(form, {text}, ending, start);
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(ReadIn(form, bytes, ending, start), whole) << text;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const std::vector<std::string> halves = {text.substr(0, cut), text.substr(cut)};
    EXPECT_EQ(ReadIn(form, halves, ending, start), whole) << text << " at " << cut;
  }
  return whole;
}

// Parses an answer whose prompt has opened the reasoning.
inline std::string ReadInReasoning(const AnswerForm& form, const std::string& text) {
  return Read(form, text, Ending::kByModel, ReasoningStart::kOpen);
}

}  // namespace diffserve::testing
