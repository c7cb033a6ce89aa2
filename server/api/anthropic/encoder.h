// SPDX-License-Identifier: Apache-2.0
// MessagesResponse: an answer in the format of Anthropic's /v1/messages, as a whole message or as
// events, and the format's errors.
// Thread safety: one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/api/reply/answer_splitter.h"
#include "server/api/reply/response_encoder.h"

namespace diffserve {

// {"type": "error", "error": {"type", "message"}, "request_id"}
std::string MessagesErrorBody(const Status& status, std::string_view request_id);

struct MessagesIdentity {
  std::string id;  // "msg_..."
  std::string model;
  std::string call_id;          // of the first call; others append a number
  std::string request_id;       // for error events
  bool omits_thinking = false;  // thinking blocks have no text
};

class MessagesResponse : public AnswerWriter {
 public:
  MessagesResponse(bool stream, MessagesIdentity identity, AnswerSplitter split)
      : stream_(stream), identity_(std::move(identity)), split_(std::move(split)) {}

  void OnStarted(ResponseStarted event) override { split_.begin(event.prompts.front()); }
  void OnDelta(ResponseDelta event, AnswerState* answer) override;
  void OnDone(AnswerState* answer) override;

 private:
  struct Block {
    AnswerPart::Kind kind = AnswerPart::Kind::kContent;
    std::string text;  // of a whole message; the arguments of a call
    std::string name;  // of a call's tool
    std::string call_id;
  };
  void Begin(AnswerState* answer) const;
  void TakePart(const AnswerPart& part, AnswerState* answer);
  void OpenBlock(AnswerPart::Kind kind, std::string_view name, AnswerState* answer);
  void CloseBlock(AnswerState* answer);
  // `write` writes the delta's members.
  template <typename Write>
  void AddDelta(const char* type, AnswerState* answer, const Write& write) const;
  void AddBody(const Usage& usage, JsonWriter json);
  void AddBlock(const Block& block, JsonWriter& json) const;
  void AddHead(JsonWriter& json) const;
  void AddEnding(JsonWriter& json) const;

  const bool stream_;
  const MessagesIdentity identity_;
  const AnswerSplitter split_;
  std::vector<AnswerPart> parts_;  // of the last event, until they are written
  std::vector<Block> blocks_;      // of a whole message
  int num_blocks_ = 0;             // begun
  int num_calls_ = 0;
  AnswerPart::Kind open_kind_ = AnswerPart::Kind::kContent;  // of the open block
  bool open_ = false;
  FinishReason finish_ = FinishReason::kNone;
  std::optional<std::string> stop_sequence_;
};

}  // namespace diffserve
