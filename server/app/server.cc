// SPDX-License-Identifier: Apache-2.0
#include "server/app/server.h"

#include <algorithm>
#include <utility>

#include "kernels/process/log.h"
#include "server/api/health_routes.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;

constexpr size_t kOutboxEvents = 8192;
constexpr std::chrono::seconds kHealthTimeout{2};       // a probe is sent at once
constexpr std::chrono::seconds kHealthIdleTimeout{10};  // probes come more often, or anew
constexpr std::chrono::seconds kLastReplies{2};  // for answers to end with an error when the drain
                                                 // is over

std::chrono::milliseconds TimeUntil(steady_clock::time_point time) {
  return std::max(
      std::chrono::milliseconds(0),
      std::chrono::duration_cast<std::chrono::milliseconds>(time - steady_clock::now()));
}

HttpServerOptions HealthPortOptions() {
  HttpServerOptions health;
  health.max_connections = 64;
  health.begun_requests_keep_place = false;
  health.head_timeout = health.body_grace = health.write_stall_timeout = kHealthTimeout;
  health.idle_timeout = kHealthIdleTimeout;
  return health;
}

Engine::KvEventSink SinkOf(KvEventPublisher* publisher) {
  if (publisher == nullptr) return {};
  return [publisher](std::vector<KvEvent> events) { publisher->Publish(std::move(events)); };
}

}  // namespace

Server::Server(ServerOptions options, ServerParts parts, std::unique_ptr<Executor> executor)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      engine_(
          options_.engine, std::move(executor),
          [this](TokenEvent event) { output_->Post(std::move(event)); },
          SinkOf(parts_.kv_events.get()), std::move(parts_.tier)),
      health_([this] { return engine_.Snapshot(); }),
      watchdog_(health_, [this] { return engine_.Snapshot(); }),
      metrics_(parts_.info, [this] { return Stats(); }) {
  output_ = std::make_unique<OutputLoop>(*parts_.tokenizer, kOutboxEvents, CallsTo(engine_));
  FrontendOptions frontend = options_.frontend;
  frontend.template_roles = RolesOf(parts_.chat_template.get());
  frontend_ = std::make_unique<Frontend>(std::move(frontend), parts_.config, *parts_.tokenizer,
                                         parts_.chat_template.get(), engine_, *output_);
  HttpRoutesOptions routes = options_.routes;
  if (!routes.metrics_text) routes.metrics_text = [this] { return metrics_.Render(); };
  if (!routes.on_reply) {
    routes.on_reply = [this](std::string_view route, int status) {
      metrics_.CountHttp(route, status);
    };
  }
  routes_ = std::make_unique<HttpRoutes>(std::move(routes), *frontend_, health_, parts_.keys);
}

Status Server::Listen() {
  HttpService service = routes_->Service();
  service.on_cut = [this](HttpCut how) { metrics_.CountCut(how); };
  http_ = std::make_unique<HttpServer>(options_.http, std::move(service));
  DS_RETURN_IF_ERROR(http_->Start());
  if (options_.health_port) {
    HttpServerOptions health = HealthPortOptions();
    health.host = options_.http.host;
    health.port = *options_.health_port;
    health_http_ = std::make_unique<HttpServer>(std::move(health), HealthRoutes(health_));
    DS_RETURN_IF_ERROR(health_http_->Start());
  }
  if (options_.serves_grpc) {
    GrpcServerOptions grpc = options_.grpc;
    if (parts_.kv_events != nullptr) grpc.kv_event_source = parts_.kv_events->source();
    DS_RETURN_IF_ERROR(Assign(&grpc_, GrpcServer::Start(grpc, *frontend_, parts_.keys, &metrics_)));
  }
  listens_ = true;
  return {};
}

void Server::Stop(steady_clock::time_point deadline) {
  if (stopped_) return;
  stopped_ = true;
  health_.BeginDrain();
  if (grpc_ != nullptr) grpc_->SetServing(false);
  engine_.Drain(deadline);
  frontend_->WaitForAnswers(deadline);     // until then both ports answer probes
  engine_.Fail("the server has stopped");  // a step that still runs delivers no result
  if (http_ != nullptr) http_->Stop(TimeUntil(deadline), kLastReplies);
  if (options_.grpc.kv_events != nullptr) options_.grpc.kv_events->Close();  // ends the streams
  if (grpc_ != nullptr) grpc_->Shutdown(steady_clock::now() + kLastReplies);
  if (listens_) {
    Log(LogLevel::kInfo, "drained",
        {{"replies_ended_by_error_event", std::to_string(metrics_.num_cut(HttpCut::kErrorEvent))},
         {"replies_reset", std::to_string(metrics_.num_cut(HttpCut::kReset))}});
  }
  grpc_.reset();
  health_http_.reset();  // probes are answered to the end
  http_.reset();
  routes_.reset();
  frontend_.reset();
  output_.reset();  // before the engine, which it uses
}

ServerStats Server::Stats() const {
  ServerStats stats;
  stats.engine = engine_.Snapshot();
  if (output_ != nullptr) stats.responses = output_->stats();
  if (parts_.kv_events != nullptr) stats.kv_events = parts_.kv_events->counts();
  return stats;
}

}  // namespace diffserve
