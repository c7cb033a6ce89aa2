// SPDX-License-Identifier: Apache-2.0
// GrpcRouter: the gRPC port of a server with several models. Reflection is its own, and health,
// also that of the services of models. Each other call of these services goes to the process of the
// model that its first message names.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/grpc/port/options.h"
#include "server/api/head/api_key.h"
#include "server/router/children/model_children.h"
#include "server/router/models_file.h"

namespace diffserve {

class GrpcRouter {
 public:
  // `services`: full names of services that are linked in. Error: kUnavailable if it cannot listen
  // on the address. The references outlive it.
  static Result<std::unique_ptr<GrpcRouter>> Start(const GrpcServerOptions& options,
                                                   const std::vector<std::string>& services,
                                                   const RoutedModels& models,
                                                   ModelChildren& children, const ApiKeys& keys);
  ~GrpcRouter();

  int port() const;
  // As those of GrpcServer.
  void SetServing(bool serving);
  void Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  struct Impl;
  explicit GrpcRouter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
