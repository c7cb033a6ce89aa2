// SPDX-License-Identifier: Apache-2.0
#include "server/api/door/front_door.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>

#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "server/api/door/exchanges.h"
#include "server/api/head/client_identity.h"
#include "server/api/head/head_fields.h"
#include "server/api/head/parent_secret.h"
#include "server/api/reply/reply_members.h"
#include "server/http/content_coding.h"
#include "server/http/gate.h"

namespace diffserve {
namespace {

constexpr char kServerMethods[] = "GET, HEAD, POST, DELETE, OPTIONS";
constexpr size_t kMaxShownFieldBytes = 64;

// HEAD is served where GET is.
void AddMethod(std::string_view method, std::string* methods) {
  if (!methods->empty()) *methods += ", ";
  *methods += method;
  if (method == "GET") *methods += ", HEAD";
}

// Takes the fields by which a parent names the client out of a head; the value if there is one.
std::optional<std::string> TakeClientField(HttpHead* head) {
  std::vector<std::string> values;
  std::erase_if(head->fields, [&](auto& field) {
    if (field.first != kClientField) return false;
    values.push_back(std::move(field.second));
    return true;
  });
  return values.size() == 1 ? std::optional(std::move(values.front())) : std::nullopt;
}

}  // namespace

bool IsServerCheck(const HttpHead& head) {
  return head.method == "OPTIONS" && (head.path == "*" || head.path == "/");
}

HttpReply ServerCheckReply(const Status& ready, std::string_view methods, const ErrorBody& errors,
                           int min_retry_after_s) {
  if (!ready.ok()) return ErrorReply(ready, errors(ready), min_retry_after_s);
  HttpReply reply;
  reply.status = 204;
  reply.fields.emplace_back("Allow", methods);
  return reply;
}

FrontDoor::FrontDoor(FrontDoorOptions options, const ApiKeys& keys)
    : options_(std::move(options)), keys_(keys) {}

HttpReply FrontDoor::Error(int status, std::string_view reason, const ErrorBody& errors) const {
  return HttpErrorReply(status, reason, errors, options_.min_retry_after_s);
}

HttpReply FrontDoor::WrongMethod(const FoundRoute& found, const RouteCall& call) const {
  HttpReply reply = Error(405, "this path does not support the method; see the Allow header",
                          call.errors);
  std::string methods;
  for (const BoundApi& api : options_.apis) {
    for (const BoundRoute& route : api.routes)
      if (route.path == found.route->path) AddMethod(route.method, &methods);
  }
  reply.fields.emplace_back("Allow", std::move(methods));
  return reply;
}

// Sets who the client is. `is_open`: the request needs no key.
std::optional<HttpReply> FrontDoor::RefusalOfSender(bool is_open, RouteCall& call) const {
  HttpHead& head = call.request.head;
  const std::optional<std::string> given = TakeClientField(&head);
  if (!options_.parent_secret.empty()) {
    std::optional<std::string> client;
    if (given) client = ClientInField(*given, options_.parent_secret);
    if (!client) return Error(403, "this port is only for the server that started it", call.errors);
    call.account.client = *std::move(client);
    return std::nullopt;
  }
  // A web page cannot leave out its host name, but the checks of load balancers do.
  const bool names_no_host = head.host.empty() && is_open;
  if (options_.loopback_hosts_only && !names_no_host && !IsLoopbackHost(head.host)) {
    return Error(421,
                 "only loopback host names are served; use 127.0.0.1 or localhost, or start the "
                 "server with API keys",
                 call.errors);
  }
  call.account.client = ClientName(keys_, call.request);
  if (std::optional<HttpReply> preflight = options_.cross_origin.Preflight(head)) return preflight;
  if (is_open || !keys_.required() || !call.account.client.empty()) return std::nullopt;
  const Status status(StatusCode::kUnauthenticated,
                      "a valid API key is needed, as Authorization: Bearer KEY or X-Api-Key");
  return ErrorReply(status, call.errors(status), options_.min_retry_after_s);
}

// Only a content type that a web page of another origin cannot send unasked lets such a page act.
std::optional<HttpReply> FrontDoor::RefusalOfBody(const BoundRoute& route,
                                                  const RouteCall& call) const {
  const HttpHead& head = call.request.head;
  const bool is_post = head.method == "POST";
  const bool is_json = IsJsonType(head.Field("content-type"));
  if (is_post && head.HasField("content-type") && !is_json)
    return Error(415,
                 RefusalText("Content-Type is " + QuotedText(head.Field("content-type")),
                             "application/json"),
                 call.errors);
  const bool is_unasked = (is_post || head.method == "GET") && !is_json;
  if (route.acts && is_unasked && options_.parent_secret.empty() &&
      options_.cross_origin.IsForeign(head)) {
    return Error(403,
                 "web pages of the origin \"" +
                     std::string(head.Field("origin").substr(0, kMaxShownFieldBytes)) +
                     "\" may not do this; --cors-origin names the origins that may",
                 call.errors);
  }
  const std::string_view coding = head.Field("content-encoding");
  if (!is_post || ContentCodingOf(coding)) return std::nullopt;
  HttpReply reply = Error(
      415, RefusalText("Content-Encoding is " + QuotedText(coding), kAcceptedCodings), call.errors);
  reply.fields.emplace_back("Accept-Encoding", kAcceptedCodings);
  return reply;
}

std::optional<HttpReply> FrontDoor::Refusal(const FoundRoute& found, RouteCall& call) const {
  const bool is_check = IsServerCheck(call.request.head);
  const bool is_open = is_check || (found.route != nullptr && !found.route->needs_key);
  if (std::optional<HttpReply> refusal = RefusalOfSender(is_open, call)) return refusal;
  if (is_check) {
    return ServerCheckReply(options_.ready(), kServerMethods, call.errors,
                            options_.min_retry_after_s);
  }
  if (found.route == nullptr) {
    const Status status = UnknownPath(options_.apis, call.request.head);
    return ErrorReply(status, call.errors(status), options_.min_retry_after_s);
  }
  if (!found.takes_method) return WrongMethod(found, call);
  if (options_.load_report && found.route->needs_key)
    call.account.load_format = HttpLoadFormat(call.request.head);
  return RefusalOfBody(*found.route, call);
}

void FrontDoor::Complete(const RouteAccount& account, HttpReply& reply) const {
  AddIdFields(account.api, account.request_id, &reply);
  options_.cross_origin.AddFields(account.origin, &reply);
  if (account.trace)
    std::ranges::move(TraceFields(*account.trace), std::back_inserter(reply.fields));
  if (account.load_format != LoadFormat::kNone)
    reply.fields.emplace_back(kLoadField, options_.load_report(account.load_format));
}

void FrontDoor::End(const RouteAccount& account, int status) const {
  if (account.trace)
    LogTraced(*account.trace, account.route, status, account.request_id, account.begin);
  if (options_.on_reply) options_.on_reply(account.route, status);
}

void FrontDoor::Finish(const RouteAccount& account, HttpReply& reply) const {
  Complete(account, reply);
  LogReply(account, reply.status);
  End(account, reply.status);
}

HttpAnswer FrontDoor::Serve(HttpRequest request, std::function<void()> wake) const {
  RouteCall call{std::move(request), {}, std::move(wake)};
  const HttpHead& head = call.request.head;
  const FoundRoute found = FindRoute(options_.apis, head);
  call.account = {.request_id = RequestIdOf(head.Field("x-request-id")),
                  .origin = std::string(head.Field("origin")),
                  .client = {},
                  .trace = TraceOf(head.fields),
                  .route = std::string(found.route == nullptr ? kNoRoute : found.route->path),
                  .begin = std::chrono::steady_clock::now(),
                  .api = found.api};
  call.errors = found.error_body(call.account.request_id);
  std::optional<HttpReply> refusal = Refusal(found, call);
  HttpAnswer answer = refusal ? HttpAnswer(*std::move(refusal)) : found.route->answer(call);
  if (call.completes_itself) return answer;
  if (auto* exchange = std::get_if<std::unique_ptr<HttpExchange>>(&answer)) {
    const auto account = std::make_shared<const RouteAccount>(std::move(call.account));
    return std::make_unique<AccountedExchange>(
        std::move(*exchange), [this, account](HttpReply& reply) { Complete(*account, reply); },
        [this, account](int status) { End(*account, status); });
  }
  Finish(call.account, std::get<HttpReply>(answer));
  return answer;
}

HttpReply FrontDoor::Refuse(int status, std::string_view reason, const HttpHead& head) const {
  Log(LogLevel::kInfo, "http_refused",
      {{"status", std::to_string(status)}, {"reason", std::string(reason)}});
  const FoundRoute found = FindRoute(options_.apis, head);
  RouteAccount account;
  account.request_id = RequestIdOf(head.Field("x-request-id"));
  account.origin = head.Field("origin");
  account.api = found.api;
  HttpReply reply = Error(status, reason, found.error_body(account.request_id));
  Complete(account, reply);
  reply.close = true;
  if (options_.on_reply) options_.on_reply(kNoRoute, reply.status);
  return reply;
}

std::string FrontDoor::ClientOf(const HttpHead& head, const std::string& peer) const {
  if (options_.parent_secret.empty()) return ClientNameOf(keys_, head, peer);
  return ClientInField(head.Field(kClientField), options_.parent_secret).value_or("");
}

HttpService FrontDoor::Service() const {
  HttpService service;
  service.serve = [this](HttpRequest request, std::function<void()> wake) {
    return Serve(std::move(request), std::move(wake));
  };
  service.refuse = [this](int status, std::string_view reason, const HttpHead& head) {
    return Refuse(status, reason, head);
  };
  service.client = [this](const HttpHead& head, const std::string& peer) {
    return ClientOf(head, peer);
  };
  service.draining = options_.draining;
  return service;
}

}  // namespace diffserve
