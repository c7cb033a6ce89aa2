// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/log.h"
#include "server/api/routes_impl.h"
#include "server/serving/status_codes.h"

namespace diffserve {

using Clock = std::chrono::steady_clock;

// Refuses new work for the engine during a drain.
HttpReply OpenAiRoutes::Impl::RefuseDraining(const ErrorReply& error_reply) const {
  frontend.engine().CountRefusal(RefusalReason::kDraining);
  HttpReply reply = error_reply(Status(StatusCode::kUnavailable, "the server is draining"));
  reply.close = true;
  return reply;
}

void OpenAiRoutes::Impl::LogEnd(const RouteAccount& account, const ExchangeOutcome& outcome) {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - account.begin).count();
  Log(LogLevel::kInfo, "http_request",
      {{"route", account.route},
       {"status", std::to_string(outcome.http_status)},
       {"end", outcome.status.ok() ? "ok" : WireStatusOf(outcome.status.code()).openai_type},
       {"completion_tokens", std::to_string(outcome.completion_tokens)},
       {"ms", std::to_string(ms)},
       {"request_id", account.request_id}});
}

HttpAnswer OpenAiRoutes::Impl::Generate(RouteCall& call, Result<OpenAiRequest> parsed) {
  if (!parsed.ok()) return Refused(parsed.status(), OpenAiErrors());
  auto response = std::make_unique<OpenAiResponse>(*parsed, Identity(call, parsed->chat),
                                                   TokenTextsOf());
  return StartResponse(call, std::move(parsed->generate),
                       {std::move(response), parsed->stream, OpenAiErrors()});
}

HttpAnswer OpenAiRoutes::Impl::Refused(const Status& status, const ErrorReply& error_reply) const {
  return health.draining() ? RefuseDraining(error_reply) : error_reply(status);
}

HttpAnswer OpenAiRoutes::Impl::StartResponse(RouteCall& call, GenerateRequest request,
                                             NewResponse response) {
  if (health.draining()) return RefuseDraining(response.error_reply);
  if (request.request_id.empty()) request.request_id = call.account.request_id;
  request.client = call.account.client;
  auto wake_due = std::make_shared<std::atomic<bool>>(false);
  auto stream = std::make_shared<ResponseStream>(
      frontend.options().max_stream_bytes,
      GenerateExchange::NotifyOf(wake_due, std::move(call.wake)));
  GenerateExchange::Hooks hooks;
  hooks.error_reply = response.error_reply;
  hooks.on_end = [in_flight = in_flight, account = call.account](const ExchangeOutcome& outcome) {
    --*in_flight;
    LogEnd(account, outcome);
  };
  // Made before the response is opened, because it writes a refusal too.
  auto exchange = std::make_unique<GenerateExchange>(frontend, stream, std::move(wake_due),
                                                     std::move(response.writer), response.streams,
                                                     std::move(hooks));
  const Result<ResponseId> id = frontend.Generate(std::move(request), std::move(stream));
  if (!id.ok()) return exchange->Refused(id.status());
  ++*in_flight;
  exchange->Begin(*id);
  return exchange;
}

HttpAnswer OpenAiRoutes::Impl::TokenizeParsed(RouteCall& call, Result<TokenizeRequest> parsed) {
  if (!parsed.ok()) return Error(parsed.status());
  if (const Status status = CheckModel(parsed->model); !status.ok()) return Error(status);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  const bool with_texts = parsed->return_token_strs;
  const int max_model_len = frontend.engine().options().max_model_len;
  const Status status = frontend.Tokenize(
      call.account.client, std::move(parsed->prompt), parsed->add_special_tokens,
      [self = shared_from_this(), pending, with_texts,
       max_model_len](Result<std::vector<int32_t>> ids) {
        if (!ids.ok()) return pending->Fill(ids.status());
        std::vector<std::string> texts;
        if (with_texts) {
          for (const int32_t id : *ids) texts.push_back(self->frontend.tokenizer().TokenBytes(id));
        }
        pending->Fill(Json(TokenizeBody(*ids, max_model_len, with_texts ? &texts : nullptr)));
      });
  if (!status.ok()) return Error(status);
  return Pending(std::move(pending));
}

HttpAnswer OpenAiRoutes::Impl::DetokenizeParsed(RouteCall& call, Result<DetokenizeRequest> parsed) {
  if (!parsed.ok()) return Error(parsed.status());
  if (const Status status = CheckModel(parsed->model); !status.ok()) return Error(status);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  const Status status = frontend.Detokenize(
      call.account.client, std::move(parsed->tokens), [pending](Result<std::string> text) {
        pending->Fill(text.ok() ? Json(JsonObjectOf("prompt", *text))
                                : Result<HttpReply>(text.status()));
      });
  if (!status.ok()) return Error(status);
  return Pending(std::move(pending));
}

}  // namespace diffserve
