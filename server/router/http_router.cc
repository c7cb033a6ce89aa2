// SPDX-License-Identifier: Apache-2.0
#include "server/router/http_router.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "kernels/base/log.h"
#include "server/api/head/client_identity.h"
#include "server/api/head/head_fields.h"
#include "server/http/content_coding.h"
#include "server/http/url.h"
#include "server/json/json_member.h"
#include "server/router/forward_exchange.h"
#include "server/router/metrics_exchange.h"
#include "server/router/model_list.h"
#include "server/ui/files.h"

namespace diffserve {
namespace {

constexpr char kModelMember[] = "model";
constexpr std::string_view kModelPath = "/v1/models/";
constexpr size_t kMaxShownNameBytes = 128;
constexpr int kMinRetryAfter = 1;

HttpReply JsonBody(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

// The body without its content coding; nullopt: it cannot be read, which the model's server
// reports.
std::optional<std::string> Decoded(const HttpRequest& request, size_t max_bytes) {
  const auto coding = ContentCodingOf(request.head.Field("content-encoding"));
  if (!coding) return std::nullopt;
  auto decoded = DecodeBody(*coding, request.body, max_bytes);
  if (auto* text = std::get_if<std::string>(&decoded)) return std::move(*text);
  return std::nullopt;
}

// The name in the body, else in the query, else empty.
std::string ModelName(const HttpRequest& request, size_t max_body_bytes) {
  std::optional<std::string> name;
  if (ContentCodingOf(request.head.Field("content-encoding")) == ContentCoding::kIdentity) {
    name = FindStringMember(request.body, kModelMember);
  } else if (const auto body = Decoded(request, max_body_bytes)) {
    name = FindStringMember(*body, kModelMember);
  }
  return name ? *name : PercentDecoded(QueryParameter(request.head.query, kModelMember));
}

}  // namespace

HttpRouter::HttpRouter(HttpRouterOptions options, const RoutedModels& models,
                       ModelChildren& children, const ApiKeys& keys)
    : options_(std::move(options)),
      models_(models),
      children_(children),
      keys_(keys),
      door_{options_.loopback_hosts_only, options_.cross_origin, keys,
            [&children] { return children.Ready(); }, kMinRetryAfter} {
  own_routes_ = {
      {"GET", "/livez", &HttpRouter::Live, /*needs_key=*/false},
      {"GET", "/readyz", &HttpRouter::Ready, /*needs_key=*/false},
      {"GET", "/health", &HttpRouter::Ready, /*needs_key=*/false},
      {"GET", "/metrics", &HttpRouter::Metrics, /*needs_key=*/true},
      {"GET", "/v1/models", &HttpRouter::Models, /*needs_key=*/true},
      {"GET", "/models", &HttpRouter::Models, /*needs_key=*/true},
      {"GET", kModelPath, &HttpRouter::Model, /*needs_key=*/true},
      {"POST", "/models/load", &HttpRouter::Load, /*needs_key=*/true},
      {"POST", "/models/unload", &HttpRouter::Unload, /*needs_key=*/true},
  };
  if (!options_.ui) return;
  own_routes_.push_back({"GET", "/", &HttpRouter::Page, /*needs_key=*/false});
  own_routes_.push_back({"GET", "/ui/", &HttpRouter::Page, /*needs_key=*/false});
}

HttpReply HttpRouter::Error(const Call& call, const Status& status) {
  return ErrorReply(status, call.errors(status), kMinRetryAfter);
}

void HttpRouter::AddFields(const Api* api, const std::string& request_id, const std::string& origin,
                           HttpReply* reply) const {
  AddIdFields(api, request_id, reply);
  options_.cross_origin.AddFields(origin, reply);
}

Result<size_t> HttpRouter::Find(const std::string& name) const {
  if (const auto model = models_.Find(name)) return *model;
  return Status(StatusCode::kNotFound,
                "the model '" + name.substr(0, kMaxShownNameBytes) + "' is not served here",
                kModelMember);
}

HttpAnswer HttpRouter::Live(Call&) { return JsonBody(JsonObjectOf("status", "ok")); }

HttpAnswer HttpRouter::Ready(Call& call) {
  const Status status = children_.Ready();
  return status.ok() ? JsonBody(JsonObjectOf("status", "ok")) : Error(call, status);
}

HttpAnswer HttpRouter::Metrics(Call& call) {
  const std::vector<ChildReport> reports = children_.Reports();
  std::vector<MetricsExchange::Source> sources;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].state == ModelState::kLoaded)
      sources.push_back({models_.all()[i].name, reports[i].address.http_port});
  }
  return std::make_unique<MetricsExchange>(ChildMetrics(models_.all(), reports, cut_.load()),
                                           std::move(sources), std::move(call.request.head),
                                           std::move(call.wake));
}

HttpAnswer HttpRouter::Models(Call&) {
  return JsonBody(ModelListJson(models_.all(), children_.Reports(), created_));
}

HttpAnswer HttpRouter::Model(Call& call) {
  const std::string name = PercentDecoded(
      std::string_view(call.request.head.path).substr(kModelPath.size()));
  const Result<size_t> model = Find(name);
  if (!model.ok()) return Error(call, model.status());
  return JsonBody(ModelJson(models_.all()[*model], children_.Reports()[*model], created_));
}

Result<size_t> HttpRouter::ModelInBody(const Call& call) const {
  const auto name = FindStringMember(call.request.body, kModelMember);
  if (!name || name->empty())
    return InvalidArgument("model is missing; expected a JSON object with the name of a model",
                           kModelMember);
  return Find(*name);
}

HttpAnswer HttpRouter::Load(Call& call) {
  const Result<size_t> model = ModelInBody(call);
  const Status status = model.ok() ? children_.Load(*model) : model.status();
  return status.ok() ? JsonBody(JsonObjectOf("success", true)) : Error(call, status);
}

HttpAnswer HttpRouter::Unload(Call& call) {
  const Result<size_t> model = ModelInBody(call);
  if (!model.ok()) return Error(call, model.status());
  children_.Unload(*model);
  return JsonBody(JsonObjectOf("success", true));
}

HttpAnswer HttpRouter::Page(Call& call) {
  if (auto reply = UiReply(call.request.head.path)) return *std::move(reply);
  return Error(call, Status(StatusCode::kNotFound, "the page has no such file"));
}

HttpAnswer HttpRouter::Forward(Call& call) {
  const Result<size_t> model = Find(ModelName(call.request, options_.max_body_bytes));
  if (!model.ok()) return Error(call, model.status());
  const std::string origin(call.request.head.Field("origin"));
  const auto make_error = [this, api = call.api, errors = call.errors, id = call.request_id,
                           origin](const Status& status) {
    HttpReply reply = ErrorReply(status, errors(status), kMinRetryAfter);
    reply.close = draining_.load(std::memory_order_relaxed);
    AddFields(api, id, origin, &reply);
    return reply;
  };
  return std::make_unique<ForwardExchange>(children_, *model, std::move(call.request),
                                           std::move(call.wake), make_error);
}

HttpAnswer HttpRouter::Dispatch(Call& call) {
  const HttpHead& head = call.request.head;
  const FoundRoute found = FindRoute(options_.apis, head);
  const auto at_path = [&](const OwnRoute& route) { return IsPathOf(head.path, route.path); };
  const auto own = std::ranges::find_if(own_routes_, at_path);
  DoorPath path;
  if (own != own_routes_.end()) {
    path = {.known = true, .needs_key = own->needs_key, .takes_method = own->method == head.method};
    AddMethod(own->method, &path.methods);
  } else if (found.route != nullptr) {  // the model's server knows which methods it takes
    path = {.known = true, .needs_key = found.route->needs_key, .takes_method = true};
  }
  if (std::optional<HttpReply> reply = door_.Answer(head, path, ClientName(keys_, call.request),
                                                    call.errors))
    return *std::move(reply);
  if (own != own_routes_.end()) return (this->*own->answer)(call);
  return Forward(call);
}

HttpAnswer HttpRouter::Serve(HttpRequest request, std::function<void()> wake) {
  Call call = {
      .request = std::move(request), .request_id = {}, .errors = {}, .wake = std::move(wake)};
  const HttpHead& head = call.request.head;
  call.request_id = RequestIdOf(head.Field("x-request-id"));
  const FoundRoute found = FindRoute(options_.apis, head);
  call.api = found.api;
  call.errors = found.error_body(call.request_id);
  const std::string origin(head.Field("origin"));
  HttpAnswer answer = Dispatch(call);
  if (auto* reply = std::get_if<HttpReply>(&answer))
    AddFields(call.api, call.request_id, origin, reply);
  return answer;
}

HttpReply HttpRouter::Refuse(int status, std::string_view reason, const HttpHead& head) const {
  Log(LogLevel::kInfo, "http_refused",
      {{"status", std::to_string(status)}, {"reason", std::string(reason)}});
  const FoundRoute found = FindRoute(options_.apis, head);
  const std::string request_id = RequestIdOf(head.Field("x-request-id"));
  HttpReply reply = HttpErrorReply(status, reason, found.error_body(request_id), kMinRetryAfter);
  AddFields(found.api, request_id, std::string(head.Field("origin")), &reply);
  reply.close = true;
  return reply;
}

HttpService HttpRouter::Service() {
  HttpService service;
  service.serve = [this](HttpRequest request, std::function<void()> wake) {
    return Serve(std::move(request), std::move(wake));
  };
  service.refuse = [this](int status, std::string_view reason, const HttpHead& head) {
    return Refuse(status, reason, head);
  };
  service.draining = [this] { return draining_.load(std::memory_order_relaxed); };
  service.on_cut = [this](HttpCut) { ++cut_; };
  return service;
}

}  // namespace diffserve
