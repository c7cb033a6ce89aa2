// SPDX-License-Identifier: Apache-2.0
#include "server/api/attention/routes.h"

#include <ctime>
#include <memory>
#include <utility>

#include "server/api/api_context.h"
#include "server/api/attention/reply.h"
#include "server/api/attention/request.h"

namespace diffserve {
namespace {

HttpAnswer AnswerAttention(ApiContext& api, RouteCall& call,
                           Result<OpenAiAttentionRequest> parsed) {
  if (!parsed.ok() || api.health.draining()) return api.Refused(parsed.status());
  parsed->attention.request_id = call.account.request_id;
  parsed->attention.client = call.account.client;
  const auto pending = std::make_shared<AttentionExchange::PendingAnswer>(std::move(call.wake));
  Result<std::shared_ptr<AttentionMapsCall>> started = AttentionMapsCall::Start(
      api.frontend, std::move(parsed->attention),
      [pending](Result<SharedAttentionAnswer> answer) { pending->Fill(std::move(answer)); });
  if (!started.ok()) return api.Error(started.status());
  AttentionText::Options options = {"attn-" + call.account.request_id, api.model_name(),
                                    std::time(nullptr), parsed->float16};
  auto exchange = std::make_unique<AttentionExchange>(std::move(started).value(), pending,
                                                      std::move(options),
                                                      api.HooksOf(call.account, OpenAiErrorBody));
  ++*api.in_flight;  // until on_end
  return exchange;
}

}  // namespace

Api AttentionApi() {
  return {{{"POST", "/v1/attention", OnBody(ParseAttentionRequest, AnswerAttention)}}};
}

}  // namespace diffserve
