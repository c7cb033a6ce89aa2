// SPDX-License-Identifier: Apache-2.0
#include "server/api/routes.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "kernels/base/log.h"
#include "server/api/head/client_identity.h"
#include "server/api/head/head_fields.h"
#include "server/http/url.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

HttpRoutes::HttpRoutes(HttpRoutesOptions options, Frontend& frontend, const Health& health,
                       const ApiKeys& keys)
    : context_(std::make_shared<ApiContext>(std::move(options), frontend, health)),
      keys_(keys),
      apis_(AllApis(context_->options)),
      door_{context_->options.loopback_hosts_only, context_->options.cross_origin, keys,
            [&health] { return health.Ready(); }, context_->options.retry_after_s} {}

std::vector<Route> HttpRoutes::routes() const {
  std::vector<Route> routes;
  for (const Api& api : apis_) std::ranges::copy(api.routes, std::back_inserter(routes));
  return routes;
}

DoorPath HttpRoutes::PathOf(const FoundRoute& found) const {
  if (found.route == nullptr) return {};
  DoorPath path = {
      .known = true, .needs_key = found.route->needs_key, .takes_method = found.takes_method};
  if (path.takes_method) return path;
  for (const Route& route : routes()) {
    if (route.path == found.route->path) AddMethod(route.method, &path.methods);
  }
  return path;
}

HttpAnswer HttpRoutes::Dispatch(RouteCall& call) {
  const HttpHead& head = call.request.head;
  const FoundRoute found = FindRoute(apis_, head);
  call.account.api = found.api;
  const ErrorBody& errors = call.errors = found.error_body(call.account.request_id);
  if (found.route != nullptr) call.account.route = found.route->path;
  call.account.client = ClientName(keys_, call.request);
  if (std::optional<HttpReply> reply = door_.Answer(head, PathOf(found), call.account.client,
                                                    errors))
    return *std::move(reply);
  if (found.route->needs_key) call.account.load_format = HttpLoadFormat(head);
  if (head.method == "POST" && head.HasField("content-type") &&
      !IsJsonType(head.Field("content-type"))) {
    return context_->HttpError(415, "Content-Type must be application/json", errors);
  }
  return found.route->answer(*context_, call);
}

void HttpRoutes::AddFields(const RouteAccount& account, HttpReply& reply) const {
  AddIdFields(account.api, account.request_id, &reply);
  context_->options.cross_origin.AddFields(account.origin, &reply);
  if (account.trace)
    std::ranges::move(TraceFields(*account.trace), std::back_inserter(reply.fields));
  if (account.load_format != LoadFormat::kNone) {
    reply.fields.emplace_back(
        kLoadField, LoadReport(context_->frontend.engine().Snapshot(), account.load_format));
  }
}

void HttpRoutes::End(const RouteAccount& account, int status) const {
  if (account.trace)
    LogTraced(*account.trace, account.route, status, account.request_id, account.begin);
  context_->options.on_reply(account.route, status);
}

HttpAnswer HttpRoutes::Serve(HttpRequest request, std::function<void()> wake) {
  RouteCall call{std::move(request), {}, std::move(wake)};
  const HttpHead& head = call.request.head;
  call.account = {RequestIdOf(head.Field("x-request-id")),
                  std::string(head.Field("origin")),
                  {},
                  TraceOf(head.fields),
                  std::string(kNoRoute),
                  Clock::now()};
  HttpAnswer answer = Dispatch(call);
  if (auto* exchange = std::get_if<std::unique_ptr<HttpExchange>>(&answer)) {
    const auto account = std::make_shared<const RouteAccount>(std::move(call.account));
    return std::make_unique<AccountedExchange>(
        std::move(*exchange), [this, account](HttpReply& reply) { AddFields(*account, reply); },
        [this, account](int status) { End(*account, status); });
  }
  HttpReply& reply = std::get<HttpReply>(answer);
  AddFields(call.account, reply);
  LogReply(call.account, reply.status);
  End(call.account, reply.status);
  return answer;
}

HttpReply HttpRoutes::Refuse(int status, std::string_view reason, const HttpHead& head) const {
  Log(LogLevel::kInfo, "http_refused",
      {{"status", std::to_string(status)}, {"reason", std::string(reason)}});
  const FoundRoute found = FindRoute(apis_, head);
  const std::string request_id = RequestIdOf(head.Field("x-request-id"));
  HttpReply reply = context_->HttpError(status, reason, found.error_body(request_id));
  AddIdFields(found.api, request_id, &reply);
  context_->options.cross_origin.AddFields(head.Field("origin"), &reply);
  reply.close = true;
  context_->options.on_reply(kNoRoute, reply.status);
  return reply;
}

HttpService HttpRoutes::Service() {
  HttpService service;
  service.serve = [this](HttpRequest request, std::function<void()> wake) {
    return Serve(std::move(request), std::move(wake));
  };
  service.refuse = [this](int status, std::string_view reason, const HttpHead& head) {
    return Refuse(status, reason, head);
  };
  service.draining = [this] { return context_->health.draining(); };
  return service;
}

}  // namespace diffserve
