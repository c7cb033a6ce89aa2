// SPDX-License-Identifier: Apache-2.0
// MessagesResponse: an answer in the format of Anthropic's /v1/messages, as a whole message or as
// events, and the format's errors.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/api/answer_splitter.h"
#include "server/api/json/text_pieces.h"
#include "server/api/response_encoder.h"

namespace diffserve {

// {"type": "error", "error": {"type", "message"}, "request_id"}; an empty id is omitted.
std::string MessagesErrorBody(const Status& status, std::string_view request_id = {});

struct MessagesIdentity {
  std::string id;  // "msg_..."
  std::string model;
  std::string call_id;     // of the first call; others append a number
  std::string request_id;  // for error events
};

class MessagesResponse : public ResponseEncoder {
 public:
  MessagesResponse(bool stream, MessagesIdentity identity, AnswerSplitter split);

  void Take(ResponseEvent event) override;
  bool Write(size_t enough, std::string* out) override;
  bool written() const override { return pieces_.empty(); }
  bool started() const override { return started_; }
  bool done() const override { return done_; }
  const Status& status() const override { return status_; }
  int64_t completion_tokens() const override { return done_ ? usage_.completion_tokens : tokens_; }

 private:
  struct Block {
    AnswerPart::Kind kind = AnswerPart::Kind::kContent;
    std::string text;  // of a whole message; the arguments of a call
    std::string name;  // of a call's tool
    std::string call_id;
  };
  void OnDelta(ResponseDelta event);
  void OnDone(ResponseDone event);
  void Begin();
  void TakePart(const AnswerPart& part);
  void OpenBlock(AnswerPart::Kind kind, std::string_view name);
  void CloseBlock();
  void AddBody();
  void AddBlock(const Block& block);
  void AddEnding();
  std::string Head() const;

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
  std::string stop_sequence_;
  bool has_stop_sequence_ = false;
  int64_t prompt_tokens_ = 0;
  int64_t tokens_ = 0;
  Usage usage_;
  Status status_;
  bool started_ = false;
  bool done_ = false;
  TextPieces pieces_;
};

std::string InputTokensBody(size_t tokens);

}  // namespace diffserve
