// SPDX-License-Identifier: Apache-2.0
#include "server/api/ops/routes.h"

#include <iterator>
#include <string>
#include <string_view>

#include "server/http/url.h"
#include "server/serving/build_version.h"
#include "server/ui/files.h"

namespace diffserve {
namespace {

HttpAnswer Version(ApiContext&, RouteCall&) {
  return JsonReply(JsonObjectOf(
      [](JsonWriter& json) { json.Add("version", BuildVersion()).Add("commit", BuildCommit()); }));
}

HttpAnswer Load(ApiContext& api, RouteCall&) {
  return JsonReply(JsonObjectOf("server_load", api.in_flight->load()));
}

HttpAnswer Live(ApiContext&, RouteCall&) { return JsonReply(JsonObjectOf("status", "ok")); }

HttpAnswer Ready(ApiContext& api, RouteCall&) {
  const Status status = api.health.Ready();
  return status.ok() ? JsonReply(JsonObjectOf("status", "ok")) : api.Error(status);
}

HttpAnswer Metrics(ApiContext& api, RouteCall&) {
  HttpReply reply = JsonReply(api.options.metrics_text());
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return reply;
}

// As in vLLM, except that running requests never prevent the reset.
HttpAnswer ResetPrefixCache(ApiContext& api, RouteCall& call) {
  constexpr char kRunning[] = "reset_running_requests";
  const std::string_view running = QueryParameter(call.request.head.query, kRunning);
  if (!running.empty() && running != "false" && running != "0") {
    return api.Error(InvalidArgument(
        std::string(kRunning) + " is " + std::string(running.substr(0, 64)) +
            "; allowed is false: the cache is reset while requests run, and they keep their pages",
        kRunning));
  }
  api.frontend.engine().ResetPrefixCache();
  return JsonReply(JsonObjectOf("success", true));
}

HttpAnswer Page(ApiContext& api, RouteCall& call) {
  return UiReply(call.request.head.path)
      .value_or(api.Error(Status(StatusCode::kNotFound, "the page has no such file")));
}

}  // namespace

Api OpsApi(const HttpRoutesOptions& options) {
  Api api = {{
      {"GET", "/version", Version},
      {"GET", "/load", Load},
      {"GET", "/metrics", Metrics},
      {"POST", "/reset_prefix_cache", ResetPrefixCache},
      {"GET", "/livez", Live, /*needs_key=*/false},
      {"GET", "/readyz", Ready, /*needs_key=*/false},
      {"GET", "/health", Ready, /*needs_key=*/false},
  }};
  if (options.ui) {
    api.routes.push_back({"GET", "/", Page, /*needs_key=*/false});
    api.routes.push_back({"GET", "/ui/", Page, /*needs_key=*/false});
  }
  return api;
}

}  // namespace diffserve
