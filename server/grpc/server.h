// GrpcServer: the gRPC port. diffserve.v1.Inference, the Open Inference Protocol v2 and vLLM's
// engine service over the Frontend, the standard health service and reflection. Calls run on gRPC's
// own threads by its callback interface; one thread of ours starts the writes of streams that have
// new events.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/status.h"
#include "server/api_key.h"
#include "server/frontend.h"
#include "server/metrics_exporter.h"

namespace diffserve {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: a free one
  bool reflection = true;
  std::string model_root;  // where the model is, as clients are told
  // gRPC 1.51 frees little of what a flood of calls made it allocate, so a connection may do no
  // more than it needs.
  int max_receive_bytes = 4 << 20;
  int max_send_bytes = 64 << 20;  // log-probabilities of a long prompt
  int max_metadata_bytes = 16 << 10;
  int max_streams_per_connection = 1024;
  size_t memory_quota_bytes = size_t{256} << 20;
  int max_sync_threads = 16;       // reflection calls; the others need no thread
  int keepalive_time_ms = 30'000;  // then the peer, also one that never spoke, is asked whether it
                                   // is alive
  int keepalive_timeout_ms = 20'000;
  int min_client_ping_interval_ms = 10'000;
  int max_ping_strikes = 2;
  int64_t max_excess_cuts = 1000;  // calls of a connection that were cut off, beyond those that
                                   // were answered; then it is closed
  int max_open_calls = 4096;       // that generate; of one client three quarters
  int write_stall_timeout_ms = 30'000;  // a client that takes nothing of an answer for so long
  int max_reflection_streams = 8;       // beyond them the oldest is ended
};

class GrpcServer {
 public:
  // Error: kUnavailable if the address cannot be listened on, with the system's reason.
  // `metrics` may be nullptr. What is referred to must outlive the server.
  static Result<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                   Frontend& frontend, const ApiKeys& api_keys,
                                                   MetricsExporter* metrics);
  ~GrpcServer();

  int port() const;
  // What the health service says, for "" and for each service of inference.
  void SetServing(bool serving);
  // Sends GOAWAY, lets running calls go on until `deadline`, cancels the rest and returns when all
  // have ended. False: gRPC has lost one, as 1.51 may where memory is short, and would wait for it
  // for good. Then this cannot be destroyed, and the process can only be ended (_exit).
  bool Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
