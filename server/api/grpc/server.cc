// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/server.h"

#include <utility>
#include <vector>

#include "server/api/grpc/arrived_calls.h"
#include "server/api/grpc/call_context.h"
#include "server/api/grpc/call_watch.h"
#include "server/api/grpc/diffserve/service.h"
#include "server/api/grpc/kserve/service.h"
#include "server/api/grpc/port/port.h"
#include "server/api/grpc/vllm/service.h"
#include "server/api/grpc/vllm_native/service.h"

namespace diffserve {
namespace {

std::vector<NamedService> AllServices(CallContext& shared) {
  std::vector<NamedService> services;
  services.push_back({kInferenceServiceName, NewInferenceService(shared)});
  services.push_back({kKserveServiceName, NewKserveService(shared)});
  services.push_back({kVllmServiceName, NewVllmService(shared)});
  services.push_back({kNativeInferenceName, NewNativeInferenceService(shared)});
  services.push_back({kNativeControlName, NewNativeControlService(shared)});
  return services;
}

}  // namespace

std::vector<std::string> GrpcServiceNames() {
  return {kInferenceServiceName, kKserveServiceName, kVllmServiceName, kNativeInferenceName,
          kNativeControlName};
}

std::optional<std::string> GrpcHealthReply(std::string_view path, bool serving) {
  const size_t slash = path.rfind('/');
  const std::string_view service = path.substr(1, slash - 1), method = path.substr(slash + 1);
  if (service == kKserveServiceName) return KserveHealthReply(method, serving);
  if (service == kVllmServiceName) return VllmHealthReply(method, serving);
  return std::nullopt;
}

struct GrpcServer::Impl {
  Impl(Frontend& frontend, const ApiKeys& keys, MetricsExporter* metrics,
       const GrpcServerOptions& options)
      : watch({options.max_streams_per_connection, options.max_reflection_streams,
               options.parent_secret},
              keys),
        shared(frontend, watch, metrics, options),
        services(AllServices(shared)) {}

  CallWatch watch;
  CallContext shared;
  const std::vector<NamedService> services;
  std::unique_ptr<GrpcPort> port;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() {
  if (impl_->shared.metrics != nullptr) impl_->shared.metrics->WatchGrpc(nullptr);
  Shutdown(std::chrono::steady_clock::now());
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                      Frontend& frontend, const ApiKeys& api_keys,
                                                      MetricsExporter* metrics) {
  auto impl = std::make_unique<Impl>(frontend, api_keys, metrics, options);
  Result<std::unique_ptr<GrpcPort>> port = GrpcPort::Start(options, impl->watch, impl->services);
  if (!port.ok()) return port.status();
  impl->port = std::move(port).value();
  if (metrics != nullptr) {
    metrics->WatchGrpc([id = NewestGrpcServer(), &watch = impl->watch] {
      // A call that begins in between has arrived before, so arrived >= begun.
      const int64_t begun = watch.num_begun();
      return GrpcCallCounts{NumArrivedCalls(id), begun};
    });
  }
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
  server->SetServing(true);
  return server;
}

int GrpcServer::port() const { return impl_->port->port(); }

void GrpcServer::SetServing(bool serving) {
  impl_->port->SetServing(serving);
  impl_->shared.serving.store(serving);
}

void GrpcServer::Shutdown(std::chrono::steady_clock::time_point deadline) {
  impl_->port->Shutdown(deadline);
}

}  // namespace diffserve
