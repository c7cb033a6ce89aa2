// SPDX-License-Identifier: Apache-2.0
// OpenAiRoutes: the paths and methods of the HTTP port. The API key is checked before routing. The
// three health paths need no key, nor do those of the page, which asks the user for one. Only
// authorised clients learn that a path is unknown.
// Thread safety: Serve and Refuse may be called from any I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_key.h"
#include "server/api/cross_origin.h"
#include "server/api/responses/store.h"
#include "server/http/gate.h"
#include "server/http/message.h"
#include "server/observe/health.h"
#include "server/serving/frontend.h"

namespace diffserve {

struct OpenAiRoutesOptions {
  std::string model_root;             // shown as `root` in /v1/models
  std::string fingerprint;            // system_fingerprint
  std::string tokenizer_info = "{}";  // the body of /tokenizer_info
  bool ui = true;                     // serve the page; else its paths are unknown
  CrossOrigin cross_origin;           // other origins whose web pages may use the server
  // Serve only Host fields with a loopback name, as protection from web pages that rebind their
  // name to this machine. For servers on a loopback address without API keys.
  bool loopback_hosts_only = false;
  int retry_after_s = 1;                                // minimum, of 429 and 503
  ResponsesStoreLimits responses_store;                 // of /v1/responses
  size_t max_body_bytes = HttpLimits().max_body_bytes;  // after its content coding is decoded
  std::function<std::string()> metrics_text;            // Prometheus text
  // Called once per request that was answered or whose client left first: when the reply's last
  // byte is made, before it is sent. `route` is a path of Routes() or kNoRoute; 499 means that the
  // client left before there was a status. Called from any I/O thread.
  std::function<void(std::string_view route, int status)> on_reply;
};

class OpenAiRoutes {
 public:
  // The label of requests without route: unknown paths, and requests that the gate refused.
  static constexpr std::string_view kNoRoute = "other";

  // All arguments outlive it, and it outlives the HttpServer that uses its service.
  OpenAiRoutes(OpenAiRoutesOptions options, Frontend& frontend, const Health& health,
               const ApiKeys& keys);
  ~OpenAiRoutes();

  HttpAnswer Serve(HttpRequest request, std::function<void()> wake);
  HttpReply Refuse(int status, std::string_view reason, const HttpHead& head) const;
  HttpService Service();

  struct RouteInfo {
    std::string_view method;
    std::string_view path;  // as IsPathOf has it; several methods may have the same
    bool needs_key = true;
  };
  static std::vector<RouteInfo> Routes();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace diffserve
