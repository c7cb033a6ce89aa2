// SPDX-License-Identifier: Apache-2.0
#include "server/api/health_routes.h"

#include "server/api/door/front_door.h"
#include "server/api/reply/reply_members.h"
#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

constexpr int kMinRetryAfter = 1;

HttpReply ReplyTo(const HttpHead& head, const Health& health) {
  if (IsServerCheck(head))
    return ServerCheckReply(health.Ready(), "GET, HEAD, OPTIONS", OpenAiErrorBody, kMinRetryAfter);
  HttpReply reply;
  Status status;
  if (head.path == "/readyz" || head.path == "/health") {
    status = health.Ready();
  } else if (head.path != "/livez") {
    status = Status(StatusCode::kNotFound, "this port serves only /livez, /readyz and /health");
  }
  reply.status = status.ok() ? 200 : WireStatusOf(status.code()).http;
  reply.body = status.ok() ? JsonObjectOf("status", "ok") : OpenAiErrorBody(status);
  if (reply.status != 404 && head.method != "GET") {
    reply.status = 405;
    reply.body = OpenAiErrorBody(InvalidArgument("only GET and HEAD are supported on this path"));
    reply.fields.emplace_back("Allow", "GET, HEAD");
  }
  return reply;
}

}  // namespace

HttpService HealthRoutes(const Health& health) {
  HttpService service;
  service.serve = [&health](HttpRequest request, std::function<void()>) -> HttpAnswer {
    return ReplyTo(request.head, health);
  };
  service.refuse = [](int status, std::string_view reason, const HttpHead&) {
    HttpReply reply;
    reply.status = status;
    reply.body = OpenAiErrorBody(InvalidArgument(std::string(reason)));
    reply.close = true;
    return reply;
  };
  service.draining = [] { return false; };
  return service;
}

}  // namespace diffserve
