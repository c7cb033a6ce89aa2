// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/server/encoder_events.h"

#include <utility>

namespace diffserve::testing {

ResponseDelta Delta(std::string text, FinishReason finish) {
  ResponseDelta delta;
  delta.text = std::move(text);
  delta.tokens.emplace_back().token = 1;
  delta.finish = finish;
  return delta;
}

AnswerSplitter MarkedSplitter() {
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

std::vector<ResponseEvent> EventsOf(ResponseStarted started, std::vector<ResponseDelta> deltas,
                                    ResponseDone done) {
  std::vector<ResponseEvent> events;
  events.emplace_back(std::move(started));
  for (ResponseDelta& delta : deltas) events.emplace_back(std::move(delta));
  events.emplace_back(std::move(done));
  return events;
}

std::vector<std::string> EventLines(const std::string& text) {
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
