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
#include "server/api/apis.h"
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
      apis_(AllApis(context_->options)) {}

std::vector<Route> HttpRoutes::routes() const {
  std::vector<Route> routes;
  for (const Api& api : apis_) std::ranges::copy(api.routes, std::back_inserter(routes));
  return routes;
}

std::string HttpRoutes::MethodsOf(std::string_view path) const {
  std::string methods;
  for (const Route& route : routes()) {
    if (route.path != path) continue;
    if (!methods.empty()) methods += ", ";
    methods += route.method;
  }
  return methods;
}

HttpAnswer HttpRoutes::Dispatch(RouteCall& call) {
  const HttpHead& head = call.request.head;
  const HttpRoutesOptions& options = context_->options;
  const FoundRoute found = FindRoute(apis_, head);
  const ErrorBody errors = found.error_body();
  if (found.route != nullptr) call.account.route = found.route->path;
  if (options.loopback_hosts_only && !IsLoopbackHost(head.Field("host"))) {
    return context_->HttpError(
        421,
        "only loopback host names are served; use 127.0.0.1 or localhost, or start the server "
        "with API keys",
        errors);
  }
  if (std::optional<HttpReply> preflight = options.cross_origin.Preflight(head))
    return *std::move(preflight);
  call.account.client = ClientName(keys_, call.request);
  const bool authorised = !keys_.required() || !call.account.client.empty();
  if ((found.route == nullptr || found.route->needs_key) && !authorised) {
    return context_->Error(
        Status(StatusCode::kUnauthenticated,
               "a valid API key is needed, as Authorization: Bearer KEY or X-Api-Key"),
        errors);
  }
  if (found.route == nullptr)
    return context_->Error(Status(StatusCode::kNotFound, "there is no such path"), errors);
  if (found.route->needs_key) call.account.load_format = HttpLoadFormat(head);
  if (!found.takes_method) {
    HttpReply reply = context_->HttpError(
        405, "this path does not support the method; see the Allow header", errors);
    reply.fields.emplace_back("Allow", MethodsOf(found.route->path));
    return reply;
  }
  if (head.method == "POST" && head.HasField("content-type") &&
      !IsJsonType(head.Field("content-type"))) {
    return context_->HttpError(415, "Content-Type must be application/json", errors);
  }
  return found.route->answer(*context_, call);
}

void HttpRoutes::AddFields(const RouteAccount& account, HttpReply& reply) const {
  reply.fields.emplace_back("X-Request-Id", account.request_id);
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
  HttpReply reply = context_->HttpError(status, reason, FindRoute(apis_, head).error_body());
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
