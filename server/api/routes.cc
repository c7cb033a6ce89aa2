// SPDX-License-Identifier: Apache-2.0
#include "server/api/routes.h"

#include <algorithm>
#include <iterator>

#include "server/api/apis.h"

namespace diffserve {

HttpRoutes::HttpRoutes(HttpRoutesOptions options, Frontend& frontend, const Health& health,
                       const ApiKeys& keys)
    : context_(std::make_shared<ApiContext>(std::move(options), frontend, health)),
      door_(DoorOptions(), keys) {}

FrontDoorOptions HttpRoutes::DoorOptions() const {
  const HttpRoutesOptions& options = context_->options;
  const Health& health = context_->health;
  const auto answer_of = [context = context_](const Route& route) {
    return [context, answer = route.answer](RouteCall& call) { return answer(*context, call); };
  };
  return {.apis = Bound(AllApis(options), answer_of),
          .cross_origin = options.cross_origin,
          .loopback_hosts_only = options.loopback_hosts_only,
          .min_retry_after_s = options.retry_after_s,
          .parent_secret = options.parent_secret,
          .ready = [&health] { return health.Ready(); },
          .draining = [&health] { return health.draining(); },
          .load_report = [&engine = context_->frontend.engine()](
                             LoadFormat format) { return LoadReport(engine.Snapshot(), format); },
          .on_reply = options.on_reply};
}

std::vector<BoundRoute> HttpRoutes::routes() const {
  std::vector<BoundRoute> routes;
  for (const BoundApi& api : door_.apis())
    std::ranges::copy(api.routes, std::back_inserter(routes));
  return routes;
}

}  // namespace diffserve
