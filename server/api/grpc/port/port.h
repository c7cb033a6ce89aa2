// SPDX-License-Identifier: Apache-2.0
// GrpcPort: a listening gRPC server of given services, with the standard health service,
// reflection, and the limits that gRPC 1.51 needs. It does not know what the services do.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/grpc/call_watch.h"
#include "server/api/grpc/port/options.h"

namespace diffserve {

struct NamedService {
  std::string name;
  std::unique_ptr<grpc::Service> service;  // asks the CallWatch for access itself
};

class GrpcPort {
 public:
  // Error: kUnavailable if it cannot listen on the address, with the system's message. The watch
  // and the services outlive it.
  static Result<std::unique_ptr<GrpcPort>> Start(const GrpcServerOptions& options, CallWatch& watch,
                                                 const std::vector<NamedService>& services);
  ~GrpcPort();

  int port() const;
  // Sets the health service's answer for "" and for each of the services.
  void SetServing(bool serving);
  // Sends GOAWAY, lets running calls continue until `deadline`, cancels the rest and returns when
  // all have ended.
  void Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  struct Impl;
  explicit GrpcPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
