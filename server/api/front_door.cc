// SPDX-License-Identifier: Apache-2.0
#include "server/api/front_door.h"

#include <algorithm>

#include "server/api/reply/reply_members.h"
#include "server/http/gate.h"

namespace diffserve {
namespace {

constexpr std::string_view kStandardMethods[] = {"GET",   "HEAD",  "POST",    "PUT",    "DELETE",
                                                 "PATCH", "TRACE", "CONNECT", "OPTIONS"};
constexpr char kServerMethods[] = "GET, HEAD, POST, DELETE, OPTIONS";

// A method outside the standard is not known to any path.
HttpReply WrongMethod(const HttpHead& head, const DoorPath& path, const ErrorBody& errors,
                      int min_retry_after_s) {
  const bool is_standard = std::ranges::find(kStandardMethods, head.method) !=
                           std::end(kStandardMethods);
  HttpReply reply = HttpErrorReply(
      is_standard ? 405 : 501,
      is_standard ? "this path does not support the method; see the Allow header"
                  : "the method is unknown; see the Allow header for those of this path",
      errors, min_retry_after_s);
  reply.fields.emplace_back("Allow", path.methods);
  return reply;
}

}  // namespace

void AddMethod(std::string_view method, std::string* methods) {
  if (!methods->empty()) *methods += ", ";
  *methods += method;
  if (method == "GET") *methods += ", HEAD";
}

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

std::optional<HttpReply> FrontDoor::Answer(const HttpHead& head, const DoorPath& path,
                                           std::string_view client, const ErrorBody& errors) const {
  const auto error = [&](const Status& status) {
    return ErrorReply(status, errors(status), min_retry_after_s);
  };
  const bool is_check = IsServerCheck(head);
  const bool is_open = is_check || (path.known && !path.needs_key);
  // A web page cannot leave out its host name, but the checks of load balancers do.
  const bool names_no_host = head.host.empty() && is_open;
  if (loopback_hosts_only && !names_no_host && !IsLoopbackHost(head.host)) {
    return HttpErrorReply(
        421,
        "only loopback host names are served; use 127.0.0.1 or localhost, or start the server "
        "with API keys",
        errors, min_retry_after_s);
  }
  if (std::optional<HttpReply> preflight = cross_origin.Preflight(head)) return preflight;
  if (is_check) return ServerCheckReply(ready(), kServerMethods, errors, min_retry_after_s);
  if (!is_open && keys.required() && client.empty()) {
    return error(Status(StatusCode::kUnauthenticated,
                        "a valid API key is needed, as Authorization: Bearer KEY or X-Api-Key"));
  }
  if (!path.known) return error(Status(StatusCode::kNotFound, "there is no such path"));
  if (!path.takes_method) return WrongMethod(head, path, errors, min_retry_after_s);
  return std::nullopt;
}

}  // namespace diffserve
