// SPDX-License-Identifier: Apache-2.0
// FrontDoor: what an HTTP port does with each request besides its answer. The port of one model and
// that of several share it. Before a route it checks in this order: the parent's secret in a
// model's process, else the host name; a preflight, a check of the whole server, the key, the path,
// the method, the content type, the web page's origin, the content coding. Afterwards it adds the
// fields of every reply, counts it and logs it.
// Thread safety: Serve, Refuse and Finish may be called from any I/O thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/door/route.h"
#include "server/api/door/route_table.h"
#include "server/api/head/api_key.h"
#include "server/api/head/cross_origin.h"
#include "server/http/message.h"

namespace diffserve {

struct FrontDoorOptions {
  std::vector<BoundApi> apis = {};  // paths, methods, answers, which need a key, the forms of
                                    // errors
  CrossOrigin cross_origin = {};
  bool loopback_hosts_only = false;
  int min_retry_after_s = 1;
  // In a model's process only requests with this secret are served (parent_secret.h). The parent
  // has checked their hosts, keys and origins. Empty: there is no parent.
  std::string parent_secret = {};
  std::function<Status()> ready = {};
  std::function<bool()> draining = {};
  std::function<std::string(LoadFormat)> load_report = {};                // may be empty
  std::function<void(std::string_view route, int status)> on_reply = {};  // may be empty
};

class FrontDoor {
 public:
  // The label of requests without route: unknown paths, and requests that the gate refused.
  static constexpr std::string_view kNoRoute = "other";

  // `keys` outlives it, and it outlives the HttpServer that uses its service.
  FrontDoor(FrontDoorOptions options, const ApiKeys& keys);

  HttpAnswer Serve(HttpRequest request, std::function<void()> wake) const;
  HttpReply Refuse(int status, std::string_view reason, const HttpHead& head) const;
  HttpService Service() const;
  // Adds the fields of every reply, counts it and logs it, for a call that completes itself.
  void Finish(const RouteAccount& account, HttpReply& reply) const;
  const std::vector<BoundApi>& apis() const { return options_.apis; }

 private:
  // Why a request reaches no route; nullopt: its route answers.
  std::optional<HttpReply> Refusal(const FoundRoute& found, RouteCall& call) const;
  std::optional<HttpReply> RefusalOfSender(bool is_open, RouteCall& call) const;
  std::optional<HttpReply> RefusalOfBody(const BoundRoute& route, const RouteCall& call) const;
  HttpReply Error(int status, std::string_view reason, const ErrorBody& errors) const;
  HttpReply WrongMethod(const FoundRoute& found, const RouteCall& call) const;
  void Complete(const RouteAccount& account, HttpReply& reply) const;
  void End(const RouteAccount& account, int status) const;
  // Whose share a request takes, before it is checked.
  std::string ClientOf(const HttpHead& head, const std::string& peer) const;

  const FrontDoorOptions options_;
  const ApiKeys& keys_;
};

// Whether a head is OPTIONS of the whole server: "*", or "/" as HAProxy's `option httpchk` sends
// it. Load balancers use it to check the server, so the answer is that of readiness.
bool IsServerCheck(const HttpHead& head);
HttpReply ServerCheckReply(const Status& ready, std::string_view methods, const ErrorBody& errors,
                           int min_retry_after_s);

}  // namespace diffserve
