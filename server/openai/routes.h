// OpenAiRoutes: what each path and method of the HTTP port means. Authentication comes before
// routing and is needed everywhere but on the three health paths and those of the page, which asks
// for a key itself; an unknown path is told only to the authorised.
// Thread safety: Serve and Refuse may be called from any I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_key.h"
#include "server/frontend.h"
#include "server/health.h"
#include "server/http/cross_origin.h"
#include "server/http/gate.h"
#include "server/http/message.h"
#include "server/openai/responses_store.h"
#include "server/openai/stream_store.h"

namespace diffserve {

struct OpenAiRoutesOptions {
  std::string model_root;             // shown as `root` in /v1/models
  std::string fingerprint;            // system_fingerprint
  std::string tokenizer_info = "{}";  // the body of /tokenizer_info
  bool strict = false;                // refuse unknown members
  bool ui = true;                     // serve the page; else its paths are unknown
  CrossOrigin cross_origin;           // web pages that may ask from elsewhere
  // Only Host fields with a loopback name are served: against web pages that rebind their name to
  // this machine. For servers on a loopback address without API keys.
  bool loopback_hosts_only = false;
  int retry_after_s = 1;                                // of 429 and 503, at least
  ResponsesStoreLimits responses_store;                 // of /v1/responses
  StreamStoreLimits streams;                            // that can be resumed
  size_t max_body_bytes = HttpLimits().max_body_bytes;  // once its content coding is undone
  std::function<std::string()> metrics_text;            // Prometheus text
  // Told once of every request that was answered or whose client left first: when the reply's last
  // byte is made, before it is sent. `route` is a path of Routes() or kNoRoute; 499 stands for a
  // client that left before there was a status. From any I/O thread.
  std::function<void(std::string_view route, int status)> on_reply;
  std::function<void(StreamFate)> on_stream;  // of streams that can be resumed; from any thread
};

class OpenAiRoutes {
 public:
  // The label of what has no route: unknown paths, and what the gate refused.
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
