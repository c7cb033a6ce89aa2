// SPDX-License-Identifier: Apache-2.0
#include "server/api/exchange.h"

#include <utility>

#include "server/json/text_pieces.h"
#include "server/serving/status_codes.h"

namespace diffserve {

GenerateExchange::GenerateExchange(Frontend& frontend, std::shared_ptr<ResponseStream> stream,
                                   std::unique_ptr<AnswerWriter> writer, bool streams,
                                   ExchangeHooks hooks)
    : frontend_(frontend),
      stream_(std::move(stream)),
      response_(std::move(writer)),
      streams_(streams),
      hooks_(std::move(hooks)) {}

GenerateExchange::~GenerateExchange() {
  stream_->Close();
  if (!id_) return;
  if (!state().done) frontend_.Abandon(*id_);
  outcome_.status = whole() ? state().status : Status(StatusCode::kCancelled, "the client left");
  outcome_.usage = state().usage;
  hooks_.on_end(outcome_);
}

std::optional<ResponseEvent> GenerateExchange::NextEvent() {
  if (!ends_with_error_) return stream_->TryPop();
  return ResponseDone{Status(StatusCode::kUnavailable, "the server is shutting down"),
                      {.completion_tokens = state().usage.completion_tokens}};
}

bool GenerateExchange::EndWithError() {
  if (!streams_ || !state().started || state().done) return false;
  ends_with_error_ = true;
  stream_->Close();
  frontend_.Abandon(*id_);
  return true;
}

void GenerateExchange::TakeEvents(std::string* bytes) {
  while (response_.Write(kTurnBytes, bytes) && bytes->size() < kTurnBytes && !state().done) {
    std::optional<ResponseEvent> event = NextEvent();
    if (!event) return;
    response_.Take(std::move(*event));
  }
}

std::optional<HttpReply> GenerateExchange::Reply() {
  TakeEvents(&pending_);
  if (!state().done && !(streams_ && state().started)) return std::nullopt;
  HttpReply reply;
  if (state().done && !state().status.ok() && !(streams_ && state().started)) {
    reply = hooks_.error_reply(state().status);
  } else if (streams_) {
    reply.streams = true;
    reply.content_type = "text/event-stream; charset=utf-8";
    reply.fields = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    reply.ping = ": ping\n\n";  // a comment, which every reader of events skips
  } else if (response_.written()) {
    reply.body = std::exchange(pending_, {});
  } else {
    reply.streams = true;
  }
  outcome_.http_status = reply.status;
  return reply;
}

HttpReply GenerateExchange::Refused(const Status& status) {
  response_.Take(ResponseDone{status, {}});
  HttpReply reply = Reply().value();
  if (std::exchange(reply.streams, false)) {
    while (!Frames(&reply.body)) {
    }
  }
  return reply;
}

bool GenerateExchange::Frames(std::string* bytes) {
  *bytes += std::exchange(pending_, {});
  TakeEvents(bytes);
  return whole();
}

std::optional<HttpReply> PendingReplyExchange::Reply() {
  std::optional<Result<HttpReply>> made = pending_->Take();
  if (!made) return std::nullopt;
  return finish_(*std::move(made));
}

}  // namespace diffserve
