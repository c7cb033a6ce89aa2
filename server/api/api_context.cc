// SPDX-License-Identifier: Apache-2.0
#include "server/api/api_context.h"

#include <chrono>

#include "kernels/process/log.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

void LogEnd(const RouteAccount& account, const ExchangeOutcome& outcome) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                      std::chrono::steady_clock::now() - account.begin)
                      .count();
  Log(LogLevel::kInfo, "http_request",
      {{"route", account.route},
       {"status", std::to_string(outcome.http_status)},
       {"end", outcome.status.ok() ? "ok" : WireStatusOf(outcome.status.code()).openai_type},
       {"completion_tokens", std::to_string(outcome.usage.completion_tokens)},
       {"cached_tokens", std::to_string(outcome.usage.cached_tokens)},
       {"loaded_tokens", std::to_string(outcome.usage.loaded_tokens)},
       {"ms", std::to_string(ms)},
       {"request_id", account.request_id}});
}

}  // namespace

DecodedBody Decoded(ContentCoding coding, std::string body, size_t max_bytes) {
  if (coding == ContentCoding::kIdentity) return body;
  return DecodeBody(coding, body, max_bytes);
}

TokenTexts ApiContext::token_texts() const {
  const Tokenizer& tokenizer = frontend.tokenizer();
  return {[&tokenizer](int32_t id) { return tokenizer.TokenBytes(id); },
          [&tokenizer](int32_t id) { return tokenizer.FirstTokenBytes(id); },
          [&tokenizer](int32_t id) { return tokenizer.IsSpecial(id); }, tokenizer.is_missing()};
}

Status ApiContext::CheckModel(const std::string& model) const {
  return frontend.options().names.Check(model);
}

HttpReply ApiContext::Error(const Status& status, const ErrorBody& body) const {
  return ErrorReply(status, body(status), options.retry_after_s);
}

HttpReply ApiContext::HttpError(int http_status, std::string_view reason,
                                const ErrorBody& body) const {
  return HttpErrorReply(http_status, reason, body, options.retry_after_s);
}

HttpReply ApiContext::Refused(const Status& status, const ErrorBody& body) const {
  if (!health.draining()) return Error(status, body);
  frontend.engine().CountRefusal(RefusalReason::kDraining);
  HttpReply reply = Error(Status(StatusCode::kUnavailable, "the server is draining"), body);
  reply.close = true;
  return reply;
}

HttpAnswer ApiContext::Pending(const RouteCall& call, std::shared_ptr<PendingReply> pending,
                               ErrorBody body) const {
  return std::make_unique<PendingReplyExchange>(
      std::move(pending), [self = shared_from_this(), account = call.account,
                           body = std::move(body)](Result<HttpReply> made) {
        HttpReply reply = made.ok() ? std::move(made).value() : self->Error(made.status(), body);
        LogReply(account, reply.status);
        return reply;
      });
}

ExchangeHooks ApiContext::HooksOf(const RouteAccount& account, ErrorBody body) const {
  return {[self = shared_from_this(), body = std::move(body)](const Status& error) {
            return self->Error(error, body);
          },
          [in_flight = in_flight, account](const ExchangeOutcome& outcome) {
            --*in_flight;
            LogEnd(account, outcome);
          }};
}

HttpAnswer ApiContext::StartResponse(RouteCall& call, NewResponse response) {
  if (health.draining()) return Refused({}, response.error_body);
  GenerateRequest& request = response.request;
  if (request.request_id.empty()) request.request_id = call.account.request_id;
  request.client = call.account.client;
  auto stream = std::make_shared<ResponseStream>(frontend.options().max_stream_bytes,
                                                 std::move(call.wake));
  // Made before the response is opened, because it writes a refusal too.
  auto exchange = std::make_unique<GenerateExchange>(
      frontend, stream, std::move(response.writer), response.streams,
      HooksOf(call.account, std::move(response.error_body)));
  const Result<ResponseId> id = frontend.Generate(std::move(request), std::move(stream));
  if (!id.ok()) return exchange->Refused(id.status());
  ++*in_flight;  // until on_end
  exchange->Begin(*id);
  return exchange;
}

}  // namespace diffserve
