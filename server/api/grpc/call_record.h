// SPDX-License-Identifier: Apache-2.0
// CallRecord: what an RPC needs besides its answer. It asks for access, passes the caller's trace
// on in the initial metadata, and at the end adds the requested load report and writes the log line
// of a traced call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/api/head/api_key.h"
#include "server/api/head/load_report.h"
#include "server/api/head/trace_context.h"

namespace diffserve {

class CallWatch;

using GrpcMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;  // of a call, as the client
                                                                         // sent it

// OK if no key is needed or the metadata holds a valid one.
Status CheckKey(const ApiKeys& keys, const GrpcMetadata& metadata);
// The socket of a call, from the context's peer ("fd:N" for a socket that was passed in). -1:
// unknown.
int DescriptorOf(std::string_view peer);
// The ClientName of a call.
std::string ClientOf(const ApiKeys& keys, const GrpcMetadata& metadata, std::string_view peer);

// Copyable; the context outlives it. REQUIRES: the initial metadata is not sent yet.
class CallRecord {
 public:
  CallRecord(const char* method, const CallWatch& watch, grpc::CallbackServerContext* context);

  const char* method() const { return method_; }
  // CallWatch::Entry and CallWatch::Access of this call.
  const Status& entry() const { return entry_; }
  const Status& access() const { return access_; }
  const std::string& client() const { return client_; }

  // Converts an error to gRPC's Status; the trailers name the field at fault.
  grpc::Status ToGrpc(const Status& status) const;
  // Call once, before Finish. The request id may be empty.
  void End(const Engine& engine, const grpc::Status& status, std::string_view request_id) const;

 private:
  const char* method_;
  grpc::CallbackServerContext* context_;
  Status entry_, access_;
  std::string client_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::optional<TraceContext> trace_;
  LoadFormat load_format_ = LoadFormat::kNone;
};

}  // namespace diffserve
