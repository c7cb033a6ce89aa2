// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/encoder.h"
#include "server/api/anthropic/request.h"
#include "server/api/routes_impl.h"

namespace diffserve {

HttpReply OpenAiRoutes::Impl::MessagesError(const Status& status) const {
  return ErrorOf(status, MessagesErrorBody(status));
}

HttpAnswer OpenAiRoutes::Impl::Messages(RouteCall& call) {
  return ParseThen(call, ParseMessagesRequest, &Impl::MessagesParsed, &Impl::MessagesError);
}

HttpAnswer OpenAiRoutes::Impl::CountTokens(RouteCall& call) {
  return ParseThen(call, ParseCountTokensRequest, &Impl::CountTokensParsed, &Impl::MessagesError);
}

HttpAnswer OpenAiRoutes::Impl::MessagesParsed(RouteCall& call, Result<AnswerRequest> parsed) {
  const ErrorReply errors = [self = shared_from_this(),
                             id = call.account.request_id](const Status& error) {
    return self->ErrorOf(error, MessagesErrorBody(error, id));
  };
  if (!parsed.ok()) return Refused(parsed.status(), errors);
  auto writer = std::make_unique<MessagesResponse>(
      parsed->stream,
      MessagesIdentity{"msg_" + call.account.request_id, frontend.options().served_model_name,
                       "toolu_" + RandomHex16(), call.account.request_id},
      SplitterOf(*parsed, TokenBytesOf()));
  return StartResponse(call, std::move(parsed->generate),
                       {std::move(writer), parsed->stream, errors});
}

HttpAnswer OpenAiRoutes::Impl::CountTokensParsed(RouteCall& call, Result<AnswerRequest> parsed) {
  if (!parsed.ok()) return MessagesError(parsed.status());
  if (const Status status = CheckModel(parsed->generate.model); !status.ok())
    return MessagesError(status);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  const Status status = frontend.Tokenize(
      call.account.client, std::move(parsed->generate.prompts.front()),
      /*add_special_tokens=*/false, [pending](Result<std::vector<int32_t>> ids) {
        pending->Fill(ids.ok() ? Json(JsonObjectOf("input_tokens", ids->size()))
                               : Result<HttpReply>(ids.status()));
      });
  if (!status.ok()) return MessagesError(status);
  return std::make_unique<PendingReplyExchange>(std::move(pending), ErrorsOf(&Impl::MessagesError));
}

}  // namespace diffserve
