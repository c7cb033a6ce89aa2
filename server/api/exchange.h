// SPDX-License-Identifier: Apache-2.0
// Exchanges of the routes: a generated response, whole or streamed, and a reply made on a text
// thread. An exchange is used on its connection's thread; destroying it before its end cancels the
// work.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api/door/pending_result.h"
#include "server/api/reply/response_encoder.h"
#include "server/http/message.h"
#include "server/serving/frontend.h"

namespace diffserve {

// The progress of a generated response, for the log and the counters.
struct ExchangeOutcome {
  int http_status = 0;  // 0: nothing was sent
  Status status;        // kCancelled if the client left
  Usage usage = {};
};

struct ExchangeHooks {
  // Converts an error before the first byte to a reply.
  std::function<HttpReply(const Status& status)> error_reply;
  std::function<void(const ExchangeOutcome& outcome)> on_end;
};

class GenerateExchange : public HttpExchange {
 public:
  // The stream's notify must wake the connection.
  GenerateExchange(Frontend& frontend, std::shared_ptr<ResponseStream> stream,
                   std::unique_ptr<AnswerWriter> writer, bool streams, ExchangeHooks hooks);
  ~GenerateExchange() override;

  // The reply if no response could start: an error, or the error event of its stream.
  HttpReply Refused(const Status& status);
  // Sets the response that writes the stream. Before this call, the exchange has no answer to end.
  void Begin(ResponseId id) { id_ = id; }

  std::optional<HttpReply> Reply() override;
  bool Frames(std::string* bytes) override;
  bool EndWithError() override;
  bool EndedWithError() const override {
    return state().started && state().done && !state().status.ok();
  }

 private:
  std::optional<ResponseEvent> NextEvent();
  // Writes events until there are none, the response is done, or `bytes` suffice for one turn.
  void TakeEvents(std::string* bytes);
  const AnswerState& state() const { return response_.answer(); }
  bool whole() const { return state().done && response_.written() && pending_.empty(); }

  Frontend& frontend_;
  const std::shared_ptr<ResponseStream> stream_;
  std::optional<ResponseId> id_;
  ResponseEncoder response_;
  const bool streams_;
  const ExchangeHooks hooks_;
  std::string pending_;           // generated, not sent yet
  bool ends_with_error_ = false;  // after the started event is written
  ExchangeOutcome outcome_;
};

using PendingReply = PendingResult<HttpReply>;

// A reply that another thread makes.
class PendingReplyExchange : public HttpExchange {
 public:
  // `finish` gets what was made, and gives the reply.
  using Finish = std::function<HttpReply(Result<HttpReply> made)>;
  PendingReplyExchange(std::shared_ptr<PendingReply> pending, Finish finish)
      : pending_(std::move(pending)), finish_(std::move(finish)) {}
  std::optional<HttpReply> Reply() override;
  bool Frames(std::string*) override { return true; }

 private:
  const std::shared_ptr<PendingReply> pending_;
  const Finish finish_;
};

}  // namespace diffserve
