// SPDX-License-Identifier: Apache-2.0
#include "server/api/anthropic/routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/encoder.h"
#include "server/api/anthropic/request.h"
#include "server/api/api_context.h"

namespace diffserve {
namespace {

std::string MessagesErrorOf(const Status& status) { return MessagesErrorBody(status); }

HttpAnswer Messages(ApiContext& api, RouteCall& call, Result<AnswerRequest> parsed) {
  const ErrorBody errors = [id = call.account.request_id](const Status& error) {
    return MessagesErrorBody(error, id);
  };
  if (!parsed.ok()) return api.Refused(parsed.status(), errors);
  auto writer = std::make_unique<MessagesResponse>(
      parsed->stream,
      MessagesIdentity{"msg_" + call.account.request_id, api.model_name(), "toolu_" + RandomHex16(),
                       call.account.request_id},
      SplitterOf(*parsed, api.token_texts().bytes));
  return api.StartResponse(
      call, {std::move(parsed->generate), std::move(writer), parsed->stream, errors});
}

HttpAnswer CountTokens(ApiContext& api, RouteCall& call, Result<AnswerRequest> parsed) {
  if (!parsed.ok()) return api.Error(parsed.status(), MessagesErrorOf);
  if (const Status status = api.CheckModel(parsed->generate.model); !status.ok())
    return api.Error(status, MessagesErrorOf);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  const Status status = api.frontend.Tokenize(
      call.account.client, std::move(parsed->generate.prompts.front()),
      /*add_special_tokens=*/false, [pending](Result<std::vector<int32_t>> ids) {
        pending->Fill(ids.ok() ? JsonReply(JsonObjectOf("input_tokens", ids->size()))
                               : Result<HttpReply>(ids.status()));
      });
  if (!status.ok()) return api.Error(status, MessagesErrorOf);
  return api.Pending(call, std::move(pending), MessagesErrorOf);
}

}  // namespace

Api AnthropicApi() {
  return {{{"POST", "/v1/messages", OnBody(ParseMessagesRequest, Messages, MessagesErrorOf)},
           {"POST", "/v1/messages/count_tokens",
            OnBody(ParseCountTokensRequest, CountTokens, MessagesErrorOf)}},
          MessagesErrorOf,
          "/v1/messages"};
}

}  // namespace diffserve
