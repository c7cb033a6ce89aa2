// SPDX-License-Identifier: Apache-2.0
// ResponseEncoder: one generated response, encoded as a whole body or as server-sent events. It has
// the state that all formats share; an AnswerWriter, one class per format, writes. The exchange
// (server/api/exchange.h) passes it the response's events and sends its output.
// Thread safety: one thread at a time.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/json/json_writer.h"

namespace diffserve {

inline constexpr size_t kEventBytes = 512;  // of an event with one token

struct AnswerState {
  TextPieces pieces;  // made, not written yet
  // Part of a stream was made: a later error can no longer become an HTTP status.
  bool started = false;
  bool done = false;
  Status status;          // of the end
  Usage usage;            // so far
  GenerationTimes times;  // the longest of its continuations so far

  void AddEvent(std::string_view name, std::string_view data) {
    if (!name.empty()) pieces.Tail().append("event: ").append(name) += '\n';
    pieces.Tail().append("data: ").append(data).append("\n\n");
  }
  // The event's data is one object; `write` writes its members.
  template <typename Write>
    requires std::invocable<Write, JsonWriter&>
  void AddEvent(std::string_view name, const Write& write) {
    std::string& text = pieces.Tail();
    text.reserve(text.size() + kEventBytes);
    if (!name.empty()) text.append("event: ").append(name) += '\n';
    text += "data: ";
    JsonWriter json(&pieces);
    json.Begin('{');
    write(json);
    json.End('}');
    pieces.Add("\n\n");
  }
};

// Called with each event until the response is done. A writer of a stream sets `started`.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void OnStarted(ResponseStarted /*event*/) {}
  virtual void OnPromptLogprobs(ResponsePromptLogprobs /*event*/, AnswerState* /*answer*/) {}
  virtual void OnDelta(ResponseDelta event, AnswerState* answer) = 0;
  virtual void OnDone(AnswerState* answer) = 0;
};

class ResponseEncoder final {
 public:
  explicit ResponseEncoder(std::unique_ptr<AnswerWriter> writer) : writer_(std::move(writer)) {}

  // Takes the next event. REQUIRES: written().
  void Take(ResponseEvent event);
  // Appends output until `out` has `enough` bytes or a little more: a stream's frames, or the body
  // once it is done with an OK status. True if nothing is left.
  bool Write(size_t enough, std::string* out) {
    answer_.pieces.Write(enough, out);
    return written();
  }
  // True if all events taken so far are written.
  bool written() const { return answer_.pieces.empty(); }
  const AnswerState& answer() const { return answer_; }

 private:
  AnswerState answer_;
  const std::unique_ptr<AnswerWriter> writer_;
};

}  // namespace diffserve
