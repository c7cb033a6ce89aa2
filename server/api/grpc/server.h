// SPDX-License-Identifier: Apache-2.0
// GrpcServer: the gRPC port. It serves diffserve.v1.Inference, the Open Inference Protocol v2,
// vLLM's engine service, the standard health service and reflection. Calls run on gRPC's own
// threads by its callback interface. One thread of ours starts the writes of streams with new
// events.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/grpc/port/options.h"
#include "server/api/head/api_key.h"
#include "server/observe/metrics_exporter.h"
#include "server/serving/frontend.h"

namespace diffserve {

// The names of the services that it serves, besides health and reflection.
std::vector<std::string> GrpcServiceNames();

// The serialized reply of a service's health method, which needs no key; nullopt: the method is
// another one. `path`: "/SERVICE/METHOD".
std::optional<std::string> GrpcHealthReply(std::string_view path, bool serving);

class GrpcServer {
 public:
  // Error: kUnavailable if it cannot listen on the address, with the system's message. `metrics`
  // may be nullptr. All referenced objects must outlive the server.
  static Result<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                   Frontend& frontend, const ApiKeys& api_keys,
                                                   MetricsExporter* metrics);
  ~GrpcServer();

  int port() const;
  // Sets the health service's answer for "" and for each service of inference.
  void SetServing(bool serving);
  // Sends GOAWAY, lets running calls continue until `deadline`, cancels the rest and returns when
  // all have ended.
  void Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
