// SPDX-License-Identifier: Apache-2.0
#include "server/api/routes.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/log.h"
#include "server/api/client_identity.h"
#include "server/api/head_fields.h"
#include "server/api/routes_impl.h"
#include "server/http/gate.h"
#include "server/http/url.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/status_codes.h"
#include "server/ui/files.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kMessagesPath = "/v1/messages";

}  // namespace

std::span<const OpenAiRoutes::Impl::Route> OpenAiRoutes::Impl::Table() {
  static constexpr Route kRoutes[] = {
      {{"POST", "/v1/completions"}, &Impl::Completions},
      {{"POST", "/v1/chat/completions"}, &Impl::ChatCompletions},
      {{"POST", kMessagesPath}, &Impl::Messages},
      {{"POST", "/v1/messages/count_tokens"}, &Impl::CountTokens},
      {{"POST", "/v1/responses"}, &Impl::Responses},
      {{"GET", "/v1/responses/{id}"}, &Impl::GetResponse},
      {{"DELETE", "/v1/responses/{id}"}, &Impl::DeleteResponse},
      {{"POST", "/v1/responses/{id}/cancel"}, &Impl::CancelResponse},
      {{"GET", "/v1/responses/{id}/input_items"}, &Impl::ResponseInputItems},
      {{"POST", "/v1/embeddings"}, &Impl::Embeddings},
      {{"POST", "/v1/attention"}, &Impl::Attention},
      {{"POST", "/tokenize"}, &Impl::Tokenize},
      {{"POST", "/detokenize"}, &Impl::Detokenize},
      {{"POST", "/inference/v1/generate"}, &Impl::TokensInOut},
      {{"POST", "/v1/completions/render"}, &Impl::RenderCompletion},
      {{"POST", "/v1/chat/completions/render"}, &Impl::RenderChat},
      {{"GET", "/tokenizer_info"}, &Impl::TokenizerInfo},
      {{"GET", "/v1/models"}, &Impl::Models},
      {{"GET", kModelPrefix}, &Impl::Model},
      {{"GET", "/version"}, &Impl::Version},
      {{"GET", "/load"}, &Impl::Load},
      {{"GET", "/metrics"}, &Impl::Metrics},
      {{"POST", "/reset_prefix_cache"}, &Impl::ResetPrefixCache},
      {{"GET", "/livez", false}, &Impl::Live},
      {{"GET", "/readyz", false}, &Impl::Ready},
      {{"GET", "/health", false}, &Impl::Ready},
      {{"GET", "/", false}, &Impl::Page},
      {{"GET", "/ui/", false}, &Impl::Page},
  };
  return kRoutes;
}

HttpReply OpenAiRoutes::Impl::Json(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

HttpReply OpenAiRoutes::Impl::Error(const Status& status) const {
  return ErrorOf(status, OpenAiErrorBody(status));
}

HttpReply OpenAiRoutes::Impl::ErrorOf(const Status& status, std::string body) const {
  HttpReply reply = Json(std::move(body));
  reply.status = WireStatusOf(status.code()).http;
  const int retry_after_s = std::max(options.retry_after_s, status.retry_after_s());
  if (reply.status == 429 || reply.status == 503)
    reply.fields.emplace_back("Retry-After", std::to_string(retry_after_s));
  if (reply.status == 401) reply.fields.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

// For errors that exist only in HTTP: their statuses have no StatusCode.
HttpReply OpenAiRoutes::Impl::ErrorWith(int http_status, std::string_view reason,
                                        ErrorForm form) const {
  const StatusCode code = http_status == 503   ? StatusCode::kUnavailable
                          : http_status == 500 ? StatusCode::kInternal
                          : http_status == 413 ? StatusCode::kTooLarge
                                               : StatusCode::kInvalidArgument;
  HttpReply reply = (this->*form)(Status(code, std::string(reason)));
  reply.status = http_status;
  return reply;
}

HttpReply OpenAiRoutes::Impl::UnknownCoding(std::string_view coding, ErrorForm form) const {
  HttpReply reply = ErrorWith(415,
                              "Content-Encoding is \"" + std::string(coding.substr(0, 64)) +
                                  "\"; allowed is one of " + kAcceptedCodings,
                              form);
  reply.fields.emplace_back("Accept-Encoding", kAcceptedCodings);
  return reply;
}

ModelCard OpenAiRoutes::Impl::Card(const std::string& name) const {
  return {name, options.model_root, frontend.engine().options().max_model_len, created};
}

HttpAnswer OpenAiRoutes::Impl::Models(RouteCall&) {
  std::vector<ModelCard> cards = {Card(frontend.options().served_model_name)};
  for (const std::string& name : frontend.options().further_model_names)
    cards.push_back(Card(name));
  return Json(ModelListBody(cards));
}

Status OpenAiRoutes::Impl::CheckModel(const std::string& model) const {
  if (model.empty() || frontend.options().Serves(model)) return {};
  return Status(StatusCode::kNotFound,
                "the model '" + model.substr(0, kMaxRequestIdBytes) + "' is not served here",
                "model");
}

OpenAiIdentity OpenAiRoutes::Impl::Identity(const RouteCall& call, bool chat) const {
  return {(chat ? "chatcmpl-" : "cmpl-") + call.account.request_id,
          frontend.options().served_model_name, options.fingerprint, std::time(nullptr)};
}

HttpAnswer OpenAiRoutes::Impl::Model(RouteCall& call) {
  const std::string name = PercentDecoded(
      std::string_view(call.request.head.path).substr(kModelPrefix.size()));
  if (!frontend.options().Serves(name)) {
    return Error(Status(StatusCode::kNotFound, "this model is not served here", "model"));
  }
  return Json(ModelBody(Card(name)));
}

HttpAnswer OpenAiRoutes::Impl::Ready(RouteCall&) {
  const Status status = health.Ready();
  return status.ok() ? Json(JsonObjectOf("status", "ok")) : Error(status);
}

HttpAnswer OpenAiRoutes::Impl::Metrics(RouteCall&) {
  HttpReply reply = Json(options.metrics_text());
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return reply;
}

// As in vLLM, except that running requests never prevent the reset.
HttpAnswer OpenAiRoutes::Impl::ResetPrefixCache(RouteCall& call) {
  constexpr char kRunning[] = "reset_running_requests";
  const std::string_view running = QueryParameter(call.request.head.query, kRunning);
  if (!running.empty() && running != "false" && running != "0") {
    return Error(InvalidArgument(std::string(kRunning) + " is " +
                                     std::string(running.substr(0, 64)) +
                                     "; allowed is false: the cache is reset while requests run, "
                                     "and they keep their pages",
                                 kRunning));
  }
  frontend.engine().ResetPrefixCache();
  return Json(JsonObjectOf("success", true));
}

// The methods of a path, as Allow lists them.
std::string OpenAiRoutes::Impl::MethodsOf(std::string_view path) {
  std::string methods;
  for (const Route& route : Table()) {
    if (route.info.path != path) continue;
    if (!methods.empty()) methods += ", ";
    methods += route.info.method;
  }
  return methods;
}

OpenAiRoutes::Impl::ErrorForm OpenAiRoutes::Impl::FormOf(std::string_view path) {
  const bool is_messages = path.starts_with(kMessagesPath) &&
                           (path.size() == kMessagesPath.size() ||
                            path[kMessagesPath.size()] == '/');
  return is_messages ? &Impl::MessagesError : &Impl::Error;
}

HttpAnswer OpenAiRoutes::Impl::Dispatch(RouteCall& call) {
  const HttpHead& head = call.request.head;
  const auto matches = [this, &head](const Route& route) {
    return (options.ui || route.answer != &Impl::Page) && IsPathOf(head.path, route.info.path);
  };
  const auto routes = Table();
  auto found = std::find_if(routes.begin(), routes.end(), [&](const Route& route) {
    return route.info.method == head.method && matches(route);
  });
  const bool takes_method = found != routes.end();
  if (!takes_method) found = std::find_if(routes.begin(), routes.end(), matches);
  const ErrorForm form = FormOf(head.path);
  if (found != routes.end()) call.account.route = found->info.path;
  if (options.loopback_hosts_only && !IsLoopbackHost(head.Field("host"))) {
    return ErrorWith(421,
                     "only loopback host names are served; use 127.0.0.1 or localhost, or start "
                     "the server with API keys",
                     form);
  }
  if (std::optional<HttpReply> preflight = options.cross_origin.Preflight(head))
    return *std::move(preflight);
  call.account.client = ClientName(keys, call.request);
  const bool authorised = !keys.required() || !call.account.client.empty();
  if ((found == routes.end() || found->info.needs_key) && !authorised) {
    return (this->*form)(
        Status(StatusCode::kUnauthenticated,
               "a valid API key is needed, as Authorization: Bearer KEY or X-Api-Key"));
  }
  if (found == routes.end())
    return (this->*form)(Status(StatusCode::kNotFound, "there is no such path"));
  if (found->info.needs_key) call.account.load_format = HttpLoadFormat(head);
  if (!takes_method) {
    HttpReply reply = ErrorWith(405, "this path does not support the method; see the Allow header",
                                form);
    reply.fields.emplace_back("Allow", MethodsOf(found->info.path));
    return reply;
  }
  if (head.method == "POST" && head.HasField("content-type") &&
      !IsJsonType(head.Field("content-type"))) {
    return ErrorWith(415, "Content-Type must be application/json", form);
  }
  return (this->*found->answer)(call);
}

void OpenAiRoutes::Impl::AddFields(const RouteAccount& account, HttpReply& reply) const {
  reply.fields.emplace_back("X-Request-Id", account.request_id);
  options.cross_origin.AddFields(account.origin, &reply);
  if (account.trace)
    std::ranges::move(TraceFields(*account.trace), std::back_inserter(reply.fields));
  if (account.load_format != LoadFormat::kNone) {
    reply.fields.emplace_back(kLoadField,
                              LoadReport(frontend.engine().Snapshot(), account.load_format));
  }
}

void OpenAiRoutes::Impl::End(const RouteAccount& account, int status) const {
  if (account.trace)
    LogTraced(*account.trace, account.route, status, account.request_id, account.begin);
  Count(account.route, status);
}

OpenAiRoutes::OpenAiRoutes(OpenAiRoutesOptions options, Frontend& frontend, const Health& health,
                           const ApiKeys& keys)
    : impl_(std::make_shared<Impl>(std::move(options), frontend, health, keys)) {}

OpenAiRoutes::~OpenAiRoutes() = default;

HttpAnswer OpenAiRoutes::Serve(HttpRequest request, std::function<void()> wake) {
  RouteCall call{std::move(request), {}, std::move(wake)};
  const HttpHead& head = call.request.head;
  call.account = {RequestIdOf(head.Field("x-request-id")),
                  std::string(head.Field("origin")),
                  {},
                  TraceOf(head.fields),
                  std::string(kNoRoute),
                  Clock::now()};
  HttpAnswer answer = impl_->Dispatch(call);
  if (auto* exchange = std::get_if<std::unique_ptr<HttpExchange>>(&answer)) {
    const auto account = std::make_shared<const RouteAccount>(std::move(call.account));
    return std::make_unique<AccountedExchange>(
        std::move(*exchange),
        [impl = impl_, account](HttpReply& reply) { impl->AddFields(*account, reply); },
        [impl = impl_, account](int status) { impl->End(*account, status); });
  }
  HttpReply& reply = std::get<HttpReply>(answer);
  impl_->AddFields(call.account, reply);
  Log(reply.status < 400 ? LogLevel::kDebug : LogLevel::kInfo, "http_request",
      {{"route", call.account.route},
       {"status", std::to_string(reply.status)},
       {"request_id", call.account.request_id}});
  impl_->End(call.account, reply.status);
  return answer;
}

HttpReply OpenAiRoutes::Refuse(int status, std::string_view reason, const HttpHead& head) const {
  Log(LogLevel::kInfo, "http_refused",
      {{"status", std::to_string(status)}, {"reason", std::string(reason)}});
  HttpReply reply = impl_->ErrorWith(status, reason, Impl::FormOf(head.path));
  impl_->options.cross_origin.AddFields(head.Field("origin"), &reply);
  reply.close = true;
  impl_->Count(kNoRoute, reply.status);
  return reply;
}

HttpService OpenAiRoutes::Service() {
  HttpService service;
  service.serve = [this](HttpRequest request, std::function<void()> wake) {
    return Serve(std::move(request), std::move(wake));
  };
  service.refuse = [this](int status, std::string_view reason, const HttpHead& head) {
    return Refuse(status, reason, head);
  };
  service.draining = [this] { return impl_->health.draining(); };
  return service;
}

std::vector<OpenAiRoutes::RouteInfo> OpenAiRoutes::Routes() {
  std::vector<RouteInfo> routes;
  for (const auto& route : Impl::Table()) routes.push_back(route.info);
  return routes;
}

}  // namespace diffserve
