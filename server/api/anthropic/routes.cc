// SPDX-License-Identifier: Apache-2.0
#include "server/api/anthropic/routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/encoder.h"
#include "server/api/anthropic/request.h"
#include "server/api/api_context.h"
#include "server/api/head/random_id.h"

namespace diffserve {
namespace {

// The fields that Anthropic's libraries read.
ApiForm::ReplyFields MessagesFields(std::string_view request_id) {
  return {{"request-id", std::string(request_id)}, {"anthropic-organization-id", "diffserve"}};
}

HttpAnswer Messages(ApiContext& api, RouteCall& call, Result<AnswerRequest> parsed) {
  if (!parsed.ok()) return api.Refused(parsed.status(), call.errors);
  auto writer = std::make_unique<MessagesResponse>(
      parsed->stream,
      MessagesIdentity{"msg_" + call.account.request_id, api.model_name(), "toolu_" + RandomHex(16),
                       call.account.request_id, /*omits_thinking=*/!parsed->include_reasoning},
      SplitterOf(*parsed, api.token_texts().bytes));
  return api.StartResponse(
      call, {std::move(parsed->generate), std::move(writer), parsed->stream, call.errors});
}

HttpAnswer CountTokens(ApiContext& api, RouteCall& call, Result<AnswerRequest> parsed) {
  if (!parsed.ok()) return api.Error(parsed.status(), call.errors);
  if (const Status status = api.CheckModel(parsed->generate.model); !status.ok())
    return api.Error(status, call.errors);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  const Status status = api.frontend.Tokenize(
      call.account.client, std::move(parsed->generate.prompts.front()),
      {.add_special_tokens = false}, [pending](Result<std::vector<int32_t>> ids) {
        pending->Fill(ids.ok() ? JsonReply(JsonObjectOf("input_tokens", ids->size()))
                               : Result<HttpReply>(ids.status()));
      });
  if (!status.ok()) return api.Error(status, call.errors);
  return api.Pending(call, std::move(pending), call.errors);
}

}  // namespace

Api AnthropicApi() {
  return {{{"POST", "/v1/messages", OnBody(ParseMessagesRequest, Messages)},
           {"POST", "/v1/messages/count_tokens", OnBody(ParseCountTokensRequest, CountTokens)}},
          {MessagesErrorBody, "/v1/messages", MessagesFields}};
}

}  // namespace diffserve
