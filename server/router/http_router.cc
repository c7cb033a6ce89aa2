// SPDX-License-Identifier: Apache-2.0
#include "server/router/http_router.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "server/api/door/exchanges.h"
#include "server/api/door/pending_result.h"
#include "server/api/reply/openapi.h"
#include "server/http/content_coding.h"
#include "server/http/url.h"
#include "server/json/json_member.h"
#include "server/router/forward_exchange.h"
#include "server/router/metrics_exchange.h"
#include "server/router/model_list.h"
#include "server/serving/request/served_names.h"
#include "server/ui/files.h"

namespace diffserve {
namespace {

constexpr char kModelMember[] = "model";
constexpr std::string_view kModelPath = "/v1/models/";
constexpr int kMinRetryAfter = 1;

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
      door_(DoorOptions(), keys),
      pool_({.threads = options_.text_threads, .max_bytes = options_.max_held_bytes}) {}

std::vector<BoundRoute> HttpRouter::OwnRoutes() {
  const Answer ready = [this](RouteCall& call) { return Ready(call); };
  const Answer models = [this](RouteCall&) {
    return JsonReply(ModelListJson(models_.all(), children_.Reports(), created_));
  };
  const Answer page = [](RouteCall& call) -> HttpAnswer {
    if (auto reply = UiReply(call.request.head.path)) return *std::move(reply);
    return Error(call, Status(StatusCode::kNotFound, "the page has no such file"));
  };
  return {
      {"GET", "/livez", [](RouteCall&) { return JsonReply(JsonObjectOf("status", "ok")); }},
      {"GET", "/readyz", ready},
      {"GET", "/health", ready},
      {"GET", "/metrics", [this](RouteCall& call) { return Metrics(call); }},
      {"GET", "/v1/models", models},
      {"GET", "/models", models},
      {"GET", kModelPath, [this](RouteCall& call) { return Model(call); }},
      {"GET", "/openapi.json", [](RouteCall&) { return OpenApiReply(); }},
      {"POST", "/models/load", WithName(std::bind_front(&HttpRouter::Load, this))},
      {"POST", "/models/unload", WithName(std::bind_front(&HttpRouter::Unload, this))},
      {"GET", "/", page},
      {"GET", "/ui/", page},
  };
}

// The paths are those of the models' servers and those of models. A request that is forwarded may
// load its model, for which another one may have to make room.
FrontDoorOptions HttpRouter::DoorOptions() {
  const Answer forward = WithName(std::bind_front(&HttpRouter::Forward, this));
  std::vector<BoundApi> apis = Bound(options_.apis, [&](const Route&) { return forward; });
  apis.push_back(
      {{{"GET", "/models", {}}, {"POST", "/models/load", {}}, {"POST", "/models/unload", {}}}});
  const std::vector<BoundRoute> own_routes = OwnRoutes();
  for (BoundApi& api : apis) {
    for (BoundRoute& route : api.routes) {
      const auto own = std::ranges::find_if(own_routes, [&](const BoundRoute& candidate) {
        return candidate.path == route.path && candidate.method == route.method;
      });
      route.acts = route.acts || own == own_routes.end();
      if (own != own_routes.end()) route.answer = own->answer;
    }
  }
  return {.apis = std::move(apis),
          .cross_origin = options_.cross_origin,
          .loopback_hosts_only = options_.loopback_hosts_only,
          .min_retry_after_s = kMinRetryAfter,
          .ready = [this] { return children_.Ready(); },
          .draining = [this] { return draining_.load(std::memory_order_relaxed); }};
}

HttpReply HttpRouter::Error(const RouteCall& call, const Status& status) {
  return ErrorReply(status, call.errors(status), kMinRetryAfter);
}

Result<size_t> HttpRouter::Find(const std::string& name) const {
  if (const auto model = models_.Find(name)) return *model;
  return UnknownModel(name, models_.Names(), kModelMember);
}

HttpAnswer HttpRouter::Ready(RouteCall& call) {
  const Status status = children_.Ready();
  return status.ok() ? JsonReply(JsonObjectOf("status", "ok")) : Error(call, status);
}

HttpAnswer HttpRouter::Metrics(RouteCall& call) {
  const std::vector<ChildReport> reports = children_.Reports();
  std::vector<MetricsExchange::Source> sources;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].state == ModelState::kLoaded)
      sources.push_back({models_.all()[i].name, reports[i].address});
  }
  return std::make_unique<MetricsExchange>(ChildMetrics(models_.all(), reports, cut_.load()),
                                           std::move(sources), call.account.client,
                                           std::move(call.request), std::move(call.wake));
}

HttpAnswer HttpRouter::Model(RouteCall& call) {
  const std::string name = PercentDecoded(
      std::string_view(call.request.head.path).substr(kModelPath.size()));
  const Result<size_t> model = Find(name);
  if (!model.ok()) return Error(call, model.status());
  return JsonReply(ModelJson(models_.all()[*model], children_.Reports()[*model], created_));
}

HttpRouter::Answer HttpRouter::WithName(OfName answer) {
  return [this, answer = std::move(answer)](RouteCall& call) {
    const size_t bytes = call.request.body.size();
    const bool is_coded = ContentCodingOf(call.request.head.Field("content-encoding")) !=
                          ContentCoding::kIdentity;
    if (bytes == 0 || (bytes <= kMaxInlineBodyBytes && !is_coded))
      return answer(call, ModelName(call.request, options_.max_body_bytes));
    return NamedLater(call, answer);
  };
}

HttpAnswer HttpRouter::NamedLater(RouteCall& call, const OfName& answer) {
  const size_t bytes = call.request.body.size();
  auto name = std::make_shared<PendingResult<std::string>>(call.wake);
  const auto later = std::make_shared<RouteCall>(std::move(call));
  const bool queued = pool_.TrySubmit(
      later->account.client, std::max(bytes, kMaxInlineBodyBytes + 1),
      [name, weak = std::weak_ptr(later), max_bytes = options_.max_body_bytes](bool run) {
        const std::shared_ptr<RouteCall> found = run ? weak.lock() : nullptr;
        if (found != nullptr) name->Fill(ModelName(found->request, max_bytes));
      });
  if (!queued) {
    call = std::move(*later);
    return Error(
        call, Status(StatusCode::kResourceExhausted, "too many requests are waiting to be read"));
  }
  call.completes_itself = true;
  return std::make_unique<DeferredExchange>(
      bytes, [this, name, later, answer]() -> std::optional<HttpAnswer> {
        const std::optional<Result<std::string>> taken = name->Take();
        if (!taken) return std::nullopt;
        HttpAnswer made = answer(*later, **taken);
        if (auto* reply = std::get_if<HttpReply>(&made)) door_.Finish(later->account, *reply);
        return made;
      });
}

Result<size_t> HttpRouter::FindGiven(const std::string& name) const {
  if (!name.empty()) return Find(name);
  return Missing(kModelMember, "the name of a model in a JSON object");
}

HttpAnswer HttpRouter::Load(RouteCall& call, const std::string& name) {
  const Result<size_t> model = FindGiven(name);
  const Status status = model.ok() ? children_.Load(*model, call.account.client) : model.status();
  return status.ok() ? JsonReply(JsonObjectOf("success", true)) : Error(call, status);
}

HttpAnswer HttpRouter::Unload(RouteCall& call, const std::string& name) {
  const Result<size_t> model = FindGiven(name);
  if (!model.ok()) return Error(call, model.status());
  children_.Unload(*model);
  return JsonReply(JsonObjectOf("success", true));
}

HttpAnswer HttpRouter::Forward(RouteCall& call, const std::string& name) {
  const Result<size_t> model = Find(name);
  if (!model.ok()) return Error(call, model.status());
  call.completes_itself = true;
  const auto make_error = [this, account = call.account,
                           errors = call.errors](const Status& status) {
    HttpReply reply = ErrorReply(status, errors(status), kMinRetryAfter);
    reply.close = draining_.load(std::memory_order_relaxed);
    door_.Finish(account, reply);
    return reply;
  };
  return std::make_unique<ForwardExchange>(children_, *model, call.account.client,
                                           std::move(call.request), std::move(call.wake),
                                           make_error);
}

HttpService HttpRouter::Service() {
  HttpService service = door_.Service();
  service.on_cut = [this](HttpCut) { ++cut_; };
  return service;
}

}  // namespace diffserve
