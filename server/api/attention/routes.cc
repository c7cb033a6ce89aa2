// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "server/api/attention/reply.h"
#include "server/api/attention/request.h"
#include "server/api/routes_impl.h"

namespace diffserve {

HttpAnswer OpenAiRoutes::Impl::AttentionParsed(RouteCall& call,
                                               Result<OpenAiAttentionRequest> parsed) {
  if (!parsed.ok() || health.draining()) return Refused(parsed.status(), OpenAiErrors());
  parsed->attention.request_id = call.account.request_id;
  parsed->attention.client = call.account.client;
  const auto pending = std::make_shared<AttentionExchange::PendingAnswer>(std::move(call.wake));
  Result<std::shared_ptr<AttentionMapsCall>> started = AttentionMapsCall::Start(
      frontend, std::move(parsed->attention),
      [pending](Result<SharedAttentionAnswer> answer) { pending->Fill(std::move(answer)); });
  if (!started.ok()) return Error(started.status());
  AttentionExchange::Hooks hooks;
  hooks.error_reply = [self = shared_from_this()](const Status& error) {
    return self->Error(error);
  };
  hooks.on_end = [in_flight = in_flight, account = call.account](const ExchangeOutcome& outcome) {
    --*in_flight;
    LogEnd(account, outcome);
  };
  AttentionText::Options options = {"attn-" + call.account.request_id,
                                    frontend.options().served_model_name, std::time(nullptr),
                                    parsed->float16};
  auto exchange = std::make_unique<AttentionExchange>(std::move(started).value(), pending,
                                                      std::move(options), std::move(hooks));
  ++*in_flight;  // until on_end
  return exchange;
}

}  // namespace diffserve
