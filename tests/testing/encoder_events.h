// SPDX-License-Identifier: Apache-2.0
// For tests of encoders: short ways to write events, everything that an encoder writes for them,
// and the lines of a stream of named events.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/response_stream.h"
#include "server/api/reply/answer_splitter.h"
#include "server/api/reply/response_encoder.h"

namespace diffserve::testing {

// A token and the text that it brings.
inline ResponseDelta Delta(std::string text, FinishReason finish = FinishReason::kNone) {
  ResponseDelta delta;
  delta.text = std::move(text);
  delta.tokens.emplace_back().token = 1;
  delta.finish = finish;
  return delta;
}

// A model's markers as short as can be: a piece that begins with '?' is reasoning, with '@' a
// call's name, with '=' its arguments.
inline AnswerSplitter MarkedSplitter() {
  const auto read = [call = -1](const ResponseDelta& delta,
                                std::vector<AnswerPart>* parts) mutable {
    using Kind = AnswerPart::Kind;
    const std::string_view text = delta.text;
    if (text.empty()) return;
    const Kind kind = text[0] == '?'   ? Kind::kReasoning
                      : text[0] == '@' ? Kind::kToolCall
                      : text[0] == '=' ? Kind::kToolArguments
                                       : Kind::kContent;
    if (kind == Kind::kToolCall) ++call;
    parts->push_back({kind, kind == Kind::kContent || kind == Kind::kReasoning ? 0 : call,
                      std::string(text.substr(kind == Kind::kContent ? 0 : 1))});
  };
  return {[](const PromptInfo&) {}, read};
}

// What writers from `make` write for `events`, at once and in the smallest pieces, which must
// agree.
template <typename Make>
std::string EncodedText(const Make& make, const std::vector<ResponseEvent>& events) {
  std::string whole, pieces;
  for (const bool at_once : {true, false}) {
    ResponseEncoder encoder(make());
    for (const ResponseEvent& event : events) {
      encoder.Take(event);
      bool written = false;
      while (!written) {
        std::string piece;
        written = encoder.Write(at_once ? ~size_t{0} : 1, &piece);
        (at_once ? whole : pieces) += piece;
      }
    }
    EXPECT_TRUE(encoder.answer().done);
  }
  EXPECT_EQ(whole, pieces);
  return whole;
}

inline std::vector<ResponseEvent> EventsOf(ResponseStarted started,
                                           std::vector<ResponseDelta> deltas, ResponseDone done) {
  std::vector<ResponseEvent> events;
  events.emplace_back(std::move(started));
  for (ResponseDelta& delta : deltas) events.emplace_back(std::move(delta));
  events.emplace_back(std::move(done));
  return events;
}

// "name data" of each event.
inline std::vector<std::string> EventLines(const std::string& text) {
  std::vector<std::string> lines;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find("\n\n", at);
    const size_t data = text.find("\ndata: ", at);
    if (text.compare(at, 7, "event: ") != 0 || end == std::string::npos || data > end) {
      ADD_FAILURE() << "no named event: " << text.substr(at, 200);
      return lines;
    }
    lines.push_back(text.substr(at + 7, data - at - 7) + " " +
                    text.substr(data + 7, end - data - 7));
    at = end + 2;
  }
  return lines;
}

}  // namespace diffserve::testing
