// SPDX-License-Identifier: Apache-2.0
#include "server/api/ops/routes.h"

#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/refusal.h"
#include "server/api/reply/openapi.h"
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

// A switch in the query, written as Python or JSON write it; nullopt if it is absent.
Result<std::optional<bool>> QuerySwitch(const RouteCall& call, const char* name) {
  const std::string_view value = QueryParameter(call.request.head.query, name);
  if (value.empty()) return std::optional<bool>();
  for (const std::string_view on : {"true", "True", "1"})
    if (value == on) return std::optional(true);
  for (const std::string_view off : {"false", "False", "0"})
    if (value == off) return std::optional(false);
  return NotOneOf(name, value, "true, false");
}

// As in vLLM, except that running requests never prevent the reset, and that all tiers are emptied
// unless the query says otherwise.
HttpAnswer ResetPrefixCache(ApiContext& api, RouteCall& call) {
  constexpr char kRunning[] = "reset_running_requests", kLocal[] = "reset_local",
                 kExternal[] = "reset_external";
  std::optional<bool> running, local, external;
  for (const auto& [name, value] : {std::pair(kRunning, &running), std::pair(kLocal, &local),
                                    std::pair(kExternal, &external)}) {
    if (const Status status = Assign(value, QuerySwitch(call, name)); !status.ok())
      return api.Error(status);
  }
  if (running.value_or(false)) {
    return api.Error(NotAllowed(
        std::string(kRunning) + " is true",
        "false: the cache is reset while requests run, and they keep their pages", kRunning));
  }
  Engine& engine = api.frontend.engine();
  const CacheReset which = {.memory = local.value_or(true),
                            .second_tier = external.value_or(true) && engine.Snapshot().tier};
  if (!which.any()) {
    return api.Error(NotAllowed(
        std::string(kLocal) + " is false and nothing else is to be reset",
        std::string("true, or ") + kExternal + " of a server with --kv-cache-dir", kLocal));
  }
  engine.ResetPrefixCache(which);
  return JsonReply(JsonObjectOf("success", true));
}

HttpAnswer OpenApi(ApiContext&, RouteCall&) { return OpenApiReply(); }

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
      {"GET", "/openapi.json", OpenApi, /*needs_key=*/false},
  }};
  if (options.ui) {
    api.routes.push_back({"GET", "/", Page, /*needs_key=*/false});
    api.routes.push_back({"GET", "/ui/", Page, /*needs_key=*/false});
  }
  return api;
}

}  // namespace diffserve
