// SPDX-License-Identifier: Apache-2.0
#include "server/api/vllm/routes.h"

#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "server/api/api_context.h"
#include "server/api/vllm/encoder.h"
#include "server/api/vllm/request.h"

namespace diffserve {
namespace {

HttpAnswer TokensInOut(ApiContext& api, RouteCall& call, Result<TokenRequest> parsed) {
  if (!parsed.ok()) return api.Refused(parsed.status());
  AnswerRequest& request = parsed->request;
  const std::string& id = parsed->request_id.empty() ? call.account.request_id : parsed->request_id;
  auto response = std::make_unique<TokenResponse>(
      request, TokenResponse::Identity{id, api.model_name(), std::time(nullptr)},
      api.token_texts());
  return api.StartResponse(call,
                           {std::move(request.generate), std::move(response), request.stream});
}

HttpAnswer TokenizerInfo(ApiContext& api, RouteCall&) {
  if (api.options.tokenizer_info.empty())
    return api.Error(Status(StatusCode::kNotFound, "this model has no tokenizer.json"));
  return JsonReply(api.options.tokenizer_info);
}

}  // namespace

Api VllmApi() {
  return {{{"POST", "/inference/v1/generate", OnBody(ParseTokenRequest, TokensInOut)},
           {"GET", "/tokenizer_info", TokenizerInfo}}};
}

}  // namespace diffserve
