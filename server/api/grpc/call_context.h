// SPDX-License-Identifier: Apache-2.0
// CallContext: state that all calls of the gRPC port share. WriteStarter: the thread that starts
// writes of calls with new events.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/api/grpc/call_record.h"
#include "server/api/grpc/call_watch.h"
#include "server/api/grpc/port/options.h"
#include "server/observe/metrics_exporter.h"
#include "server/serving/frontend.h"

namespace diffserve {

// A call whose answer is a stream, as the WriteStarter sees it.
class WatchedCall {
 public:
  virtual ~WatchedCall() = default;
  // Starts the next write, or ends the call, unless a write is running.
  virtual void Advance() = 0;
  // Cancels the call if the same write has been running since `begin`.
  virtual void EndIfStalled(std::chrono::steady_clock::time_point begin) = 0;

 private:
  friend class WriteStarter;
  std::atomic<bool> queued_{false};
};

// The queue of calls with new events, and the thread that starts their writes. A call is queued at
// most once, so the number of calls bounds the queue. The same thread ends calls whose client has
// read nothing for `stall_timeout`.
class WriteStarter {
 public:
  explicit WriteStarter(std::chrono::milliseconds stall_timeout)
      : stall_timeout_(stall_timeout), thread_([this] { Run(); }) {}
  ~WriteStarter() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  // Queues a call that has something new, unless it is queued.
  void Add(const std::shared_ptr<WatchedCall>& call) {
    if (call->queued_.exchange(true)) return;
    {
      std::lock_guard lock(mutex_);
      calls_.push_back(call);
    }
    wake_.notify_one();
  }
  // Call once per call, before its first write.
  void Watch(const std::shared_ptr<WatchedCall>& call) {
    {
      std::lock_guard lock(mutex_);
      watched_.push_back(call);
      if (watched_.size() == 1) next_look_ = std::chrono::steady_clock::now() + stall_timeout_ / 4;
    }
    wake_.notify_one();
  }

 private:
  void Run();
  void EndStalled(std::unique_lock<std::mutex>& lock);

  const std::chrono::milliseconds stall_timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::weak_ptr<WatchedCall>> calls_;
  std::vector<std::weak_ptr<WatchedCall>> watched_;
  std::chrono::steady_clock::time_point next_look_;  // at the watched calls
  bool stopping_ = false;
  std::thread thread_;
};

// Counts open streaming calls, each of which may hold an unread answer. One client may have three
// quarters of the limit.
class OpenCalls {
 public:
  explicit OpenCalls(int limit) : limit_(limit) {}

  Status Take(const std::string& client) {
    std::lock_guard lock(mutex_);
    int& own = by_client_[client];
    if (all_ < limit_ && own < limit_ - limit_ / 4) {
      ++all_;
      ++own;
      return {};
    }
    if (own == 0) by_client_.erase(client);
    return Status(StatusCode::kResourceExhausted, "too many calls are open");
  }
  void Give(const std::string& client) {
    std::lock_guard lock(mutex_);
    --all_;
    const auto own = by_client_.find(client);
    if (--own->second == 0) by_client_.erase(own);
  }

 private:
  const int limit_;
  std::mutex mutex_;
  int all_ = 0;
  std::unordered_map<std::string, int> by_client_;
};

// Shared by all calls.
struct CallContext {
  Frontend& frontend;
  const CallWatch& watch;
  MetricsExporter* metrics;
  GrpcServerOptions options;
  OpenCalls open_calls{options.max_open_calls};
  WriteStarter write_starter{std::chrono::milliseconds(options.write_stall_timeout_ms)};
  std::atomic<bool> serving{false};  // the health service's answer

  CallContext(Frontend& frontend_in, const CallWatch& watch_in, MetricsExporter* metrics_in,
              const GrpcServerOptions& options_in)
      : frontend(frontend_in), watch(watch_in), metrics(metrics_in), options(options_in) {}

  // Before Finish.
  void End(const CallRecord& record, const grpc::Status& status, std::string_view request_id = {}) {
    record.End(frontend.engine(), status, request_id);
    if (metrics != nullptr) metrics->CountGrpc(record.method(), status.error_code());
  }
};

}  // namespace diffserve
