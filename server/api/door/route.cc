// SPDX-License-Identifier: Apache-2.0
#include "server/api/door/route.h"

#include "kernels/process/log.h"

namespace diffserve {

std::vector<BoundApi> Bound(
    const std::vector<Api>& apis,
    const std::function<std::function<HttpAnswer(RouteCall&)>(const Route&)>& answer_of) {
  std::vector<BoundApi> bound;
  for (const Api& api : apis) {
    BoundApi& of_api = bound.emplace_back(BoundApi{{}, api.form});
    for (const Route& route : api.routes) {
      of_api.routes.push_back(
          {route.method, route.path, answer_of(route), route.needs_key, route.acts});
    }
  }
  return bound;
}

void LogReply(const RouteAccount& account, int status) {
  Log(status < 400 ? LogLevel::kDebug : LogLevel::kInfo, "http_request",
      {{"route", account.route},
       {"status", std::to_string(status)},
       {"request_id", account.request_id}});
}

}  // namespace diffserve
