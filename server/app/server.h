// SPDX-License-Identifier: Apache-2.0
// Server: owns and connects the parts of a running server, in the order of their dependencies:
// engine, output loop, frontend, routes, and the two listeners.
//
// Thread safety: Listen and Stop from one thread; for each part see its header.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "engine/engine.h"
#include "engine/text/chat_template.h"
#include "engine/text/output_loop.h"
#include "engine/text/tokenizer.h"
#include "server/api/grpc/server.h"
#include "server/api/head/api_key.h"
#include "server/api/routes.h"
#include "server/http/server.h"
#include "server/observe/health.h"
#include "server/observe/kv_event_publisher.h"
#include "server/observe/metrics_exporter.h"
#include "server/observe/watchdog.h"
#include "server/serving/frontend.h"

namespace diffserve {

struct ServerOptions {
  EngineOptions engine;
  FrontendOptions frontend;
  HttpRoutesOptions routes;  // metrics_text and on_reply are the server's own where empty
  HttpServerOptions http;
  std::optional<int> health_port;  // a port for only the health paths; 0: a free port
  GrpcServerOptions grpc;
  bool serves_grpc = true;
};

// Objects that must be loaded before.
struct ServerParts {
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // nullptr: the model has none
  ApiKeys keys;
  std::unique_ptr<KvEventPublisher> kv_events;  // nullptr: no KV event is published
  std::unique_ptr<PageTier> tier;               // of the prefix cache; nullptr: memory is all
  ServedModelInfo info;
};

class Server {
 public:
  Server(ServerOptions options, ServerParts parts, std::unique_ptr<Executor> executor);
  ~Server() { Stop(std::chrono::steady_clock::now()); }

  Status Listen();  // on all ports, or the Unix socket
  // Becomes not ready at once. Running work continues until `deadline`, then ends with an error
  // event. Idempotent.
  void Stop(std::chrono::steady_clock::time_point deadline);

  const Tokenizer& tokenizer() const { return *parts_.tokenizer; }
  Engine& engine() { return engine_; }
  Health& health() { return health_; }
  MetricsExporter& metrics() { return metrics_; }
  // REQUIRES: Stop has not been called; for http, Listen has succeeded.
  Frontend& frontend() { return *frontend_; }
  HttpRoutes& routes() { return *routes_; }
  HttpServer& http() { return *http_; }
  // Serves only the health paths; nullptr without `health_port`.
  const HttpServer* health_http() const { return health_http_.get(); }
  // nullptr without `serves_grpc`.
  GrpcServer* grpc() { return grpc_.get(); }

 private:
  ServerStats Stats() const;

  const ServerOptions options_;
  ServerParts parts_;
  std::unique_ptr<OutputLoop> output_;  // made once there is an engine; no event comes before a
                                        // request does
  Engine engine_;
  Health health_;
  Watchdog watchdog_;
  MetricsExporter metrics_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<HttpRoutes> routes_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> health_http_;
  std::unique_ptr<GrpcServer> grpc_;
  bool listens_ = false;  // on all ports, so a stop has something to drain
  bool stopped_ = false;
};

}  // namespace diffserve
