// SPDX-License-Identifier: Apache-2.0
// MetricsExporter: the text of /metrics. At each scrape it copies the engine's counters and exports
// them under two names: our own (diffserve_...) and the vllm: names that dashboards, autoscalers
// and gateways read.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/contract/stats.h"
#include "server/http/message.h"
#include "server/observe/kv_event_publisher.h"

namespace diffserve {

// Values that are constant while the server runs.
struct ServedModelInfo {
  std::string model_name;
  std::string version, commit, device, gpu_uuid, cpu_isa, dtype, kv_cache_dtype;
  int page_size = 0;
  int num_pages = 0;
  int max_model_len = 0;
  bool prefix_caching = true;
  std::vector<float> lambdas;       // [num_layers]; empty if lambda is not constant within a layer
  std::vector<float> lambda_inits;  // [num_layers] or empty likewise
};

// Calls of all gRPC services. gRPC itself ends some calls after they arrive and before they begin.
struct GrpcCallCounts {
  int64_t arrived = 0;
  int64_t begun = 0;
};

// Counters and gauges at the time of a scrape.
struct ServerStats {
  EngineStats engine;
  ResponseStats responses = {};
  KvEventCounts kv_events = {};
};

class MetricsExporter {
 public:
  MetricsExporter(ServedModelInfo info, std::function<ServerStats()> snapshot);

  // Prometheus text format, version 0.0.4.
  std::string Render() const;
  // The same without the vllm: names, because `promtool check metrics` rejects their colons and one
  // suffix.
  std::string RenderOwnNames() const;

  // `route` and `method` must come from a fixed set, never from a client. `code` is the HTTP status
  // or the grpc::StatusCode.
  void CountHttp(std::string_view route, int code);
  void CountGrpc(std::string_view method, int code);
  // Sets the source of the gRPC port's counts; nullptr removes it.
  void WatchGrpc(std::function<GrpcCallCounts()> calls);
  void CountCut(HttpCut how) { ++cuts_[static_cast<size_t>(how)]; }
  uint64_t num_cut(HttpCut how) const { return cuts_[static_cast<size_t>(how)]; }

 private:
  std::string OwnNames(const ServerStats& stats) const;
  using RequestCounts = std::map<std::pair<std::string, int>, uint64_t>;
  void Count(RequestCounts& counts, std::string_view name, int code);

  const ServedModelInfo info_;
  const std::function<ServerStats()> snapshot_;
  const std::chrono::system_clock::time_point start_;
  mutable std::mutex mutex_;
  RequestCounts http_, grpc_;
  std::function<GrpcCallCounts()> grpc_calls_;
  std::array<std::atomic<uint64_t>, static_cast<size_t>(HttpCut::kCount)> cuts_{};
};

}  // namespace diffserve
