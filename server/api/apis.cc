// SPDX-License-Identifier: Apache-2.0
#include "server/api/apis.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/api/anthropic/routes.h"
#include "server/api/attention/routes.h"
#include "server/api/head/head_fields.h"
#include "server/api/openai/routes.h"
#include "server/api/ops/routes.h"
#include "server/api/responses/routes.h"
#include "server/api/vllm/routes.h"

namespace diffserve {
namespace {

bool IsAtOrBelow(std::string_view path, std::string_view prefix) {
  return !prefix.empty() && path.starts_with(prefix) &&
         (path.size() == prefix.size() || path[prefix.size()] == '/');
}

}  // namespace

FoundRoute FindRoute(std::span<const Api> apis, const HttpHead& head) {
  FoundRoute found;
  for (const Api& api : apis) {
    if (found.api == nullptr && IsAtOrBelow(head.path, api.prefix)) found.api = &api;
    for (const Route& route : api.routes) {
      if (!IsPathOf(head.path, route.path)) continue;
      if (route.method == head.method) return {&api, &route, true};
      if (found.route == nullptr) found = {&api, &route, false};
    }
  }
  return found;
}

ErrorBody FoundRoute::error_body(const std::string& request_id) const {
  if (api == nullptr || api->error_body == nullptr) return OpenAiErrorBody;
  return
      [body = api->error_body, request_id](const Status& error) { return body(error, request_id); };
}

void AddIdFields(const Api* api, const std::string& request_id, HttpReply* reply) {
  reply->fields.emplace_back("X-Request-Id", request_id);
  if (api == nullptr || api->reply_fields == nullptr) return;
  std::ranges::move(api->reply_fields(request_id), std::back_inserter(reply->fields));
}

std::vector<Api> AllApis(const HttpRoutesOptions& options) {
  return {
      OpenAiApi(),     //
      AnthropicApi(),  //
      ResponsesApi(),  //
      AttentionApi(),  //
      VllmApi(),       //
      OpsApi(options),
  };
}

}  // namespace diffserve
