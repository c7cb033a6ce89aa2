// SPDX-License-Identifier: Apache-2.0
// HttpRouter: the HTTP port of a server with several models, behind the front door that a server of
// one model has too. It answers health, metrics, the list of models and the page itself. Every
// other request goes to the process of the model that it names, with its bytes unchanged. Thread
// safety: the service may be called from any I/O thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/door/front_door.h"
#include "server/api/door/route.h"
#include "server/api/head/api_key.h"
#include "server/api/head/cross_origin.h"
#include "server/http/gate.h"
#include "server/http/message.h"
#include "server/http/server.h"
#include "server/router/children/model_children.h"
#include "server/router/models_file.h"
#include "server/serving/text_pool.h"

namespace diffserve {

struct HttpRouterOptions {
  bool ui = true;
  int text_threads = 2;                                        // which read large bodies
  size_t max_body_bytes = HttpLimits().max_body_bytes;         // as in HttpRoutesOptions
  size_t max_held_bytes = HttpServerOptions().max_held_bytes;  // of bodies that wait to be read
  CrossOrigin cross_origin = {};
  bool loopback_hosts_only = false;  // as in HttpRoutesOptions
  std::vector<Api> apis = {};        // of the models' servers: paths, errors, which need a key
};

class HttpRouter {
 public:
  // All references outlive it, and it outlives the HttpServer that uses its service. The children
  // are in the order of the models.
  HttpRouter(HttpRouterOptions options, const RoutedModels& models, ModelChildren& children,
             const ApiKeys& keys);

  HttpService Service();
  void BeginDrain() { draining_.store(true, std::memory_order_relaxed); }

 private:
  using Answer = std::function<HttpAnswer(RouteCall& call)>;
  // The routes that this process answers itself.
  std::vector<BoundRoute> OwnRoutes();
  FrontDoorOptions DoorOptions();

  // Gives the answer for the name that the body or the query holds. A text thread reads a large
  // body.
  using OfName = std::function<HttpAnswer(RouteCall& call, const std::string& name)>;
  Answer WithName(OfName answer);
  HttpAnswer NamedLater(RouteCall& call, const OfName& answer);
  HttpAnswer Forward(RouteCall& call, const std::string& name);
  HttpAnswer Load(RouteCall& call, const std::string& name);
  HttpAnswer Unload(RouteCall& call, const std::string& name);
  HttpAnswer Ready(RouteCall& call);
  HttpAnswer Metrics(RouteCall& call);
  HttpAnswer Model(RouteCall& call);
  Result<size_t> Find(const std::string& name) const;
  Result<size_t> FindGiven(const std::string& name) const;
  static HttpReply Error(const RouteCall& call, const Status& status);

  const HttpRouterOptions options_;
  const RoutedModels& models_;
  ModelChildren& children_;
  const int64_t created_ = std::time(nullptr);  // Unix seconds
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> cut_{0};  // replies that ended early
  const FrontDoor door_;
  TextPool pool_;  // reads large bodies; last: its threads use all of the above
};

}  // namespace diffserve
