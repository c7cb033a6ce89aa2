// SPDX-License-Identifier: Apache-2.0
// GrpcServerOptions: the address and the limits of a gRPC port. A value.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "server/observe/kv_event_source.h"

namespace diffserve {

class KvEventFeed;

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: a free port
  bool reflection = true;
  std::string model_root;                  // the model's directory, as reported to clients
  std::string parent_secret;               // as in FrontDoorOptions
  std::shared_ptr<KvEventFeed> kv_events;  // nullptr: no KV event is published
  // Where ZeroMQ has the same; nullopt: no subscriber can reach it.
  std::optional<KvEventSource> kv_event_source;
  // gRPC 1.51 frees little of the memory that a flood of calls made it allocate, so connections
  // have tight limits.
  int max_receive_bytes = 4 << 20;
  int max_send_bytes = 64 << 20;  // a long prompt's log-probabilities fit
  int max_metadata_bytes = 16 << 10;
  int max_streams_per_connection = 1024;
  size_t memory_quota_bytes = size_t{256} << 20;
  int max_sync_threads = 16;       // reflection calls; the others need no thread
  int keepalive_time_ms = 30'000;  // then the peer, also one that never spoke, is asked whether it
                                   // is alive
  int keepalive_timeout_ms = 20'000;
  int min_client_ping_interval_ms = 10'000;
  int max_ping_strikes = 2;
  int max_open_calls = 4096;            // generating calls; one client may have three quarters
  int write_stall_timeout_ms = 30'000;  // after this time without a read, the call is ended
  int max_reflection_streams = 8;       // beyond this the oldest is ended
};

}  // namespace diffserve
