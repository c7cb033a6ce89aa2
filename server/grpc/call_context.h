// CallContext: what the calls of the gRPC port share. WriteStarter: the thread that lets calls with
// new events write.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/frontend.h"
#include "server/grpc/call_record.h"
#include "server/grpc/server.h"
#include "server/metrics_exporter.h"

namespace diffserve {

// A call whose answer is a stream, as the WriteStarter sees it.
class WatchedCall {
 public:
  using Place = std::list<std::weak_ptr<WatchedCall>>;  // in the queue, of one call

  virtual ~WatchedCall() = default;
  // Starts the next write, or ends the call, if nothing is under way.
  virtual void Advance() noexcept = 0;
  // Cancels the call if one write has been under way since `begin`.
  virtual void EndIfStalled(std::chrono::steady_clock::time_point begin) = 0;

 private:
  friend class WriteStarter;
  Place place_;  // empty while it is in the queue; the WriteStarter's mutex guards it
};

// The calls with new events, and the thread that lets them write. A call is in the queue at most
// once, so their number bounds it. The same thread ends calls whose client has taken nothing for
// `stall_timeout`.
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

  // A watched call has something new. Its place goes into the queue, and back to it before it is
  // let write: that asks for no memory. A call without its place is in the queue already.
  void Add(WatchedCall& call) noexcept {
    {
      std::lock_guard lock(mutex_);
      calls_.splice(calls_.end(), call.place_);
    }
    wake_.notify_one();
  }
  // Once a call, before its first write. Throws std::bad_alloc without effect.
  void Watch(const std::shared_ptr<WatchedCall>& call) {
    WatchedCall::Place place = {call};
    {
      std::lock_guard lock(mutex_);
      watched_.push_back(call);
      if (watched_.size() == 1) next_look_ = std::chrono::steady_clock::now() + stall_timeout_ / 4;
      call->place_.splice(call->place_.end(), place);
    }
    wake_.notify_one();
  }

 private:
  void Run();
  void EndStalled(std::unique_lock<std::mutex>& lock);

  const std::chrono::milliseconds stall_timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  WatchedCall::Place calls_;
  std::vector<std::weak_ptr<WatchedCall>> watched_;
  std::chrono::steady_clock::time_point next_look_;  // at what is watched
  bool stopping_ = false;
  std::thread thread_;
};

// How many streaming calls are open, each of which may hold an answer that nobody reads: a limit
// for all and three quarters of it for one client.
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

// What the calls share.
struct CallContext {
  Frontend& frontend;
  const ApiKeys& api_keys;
  MetricsExporter* metrics;
  GrpcServerOptions options;
  OpenCalls open_calls{options.max_open_calls};
  WriteStarter write_starter{std::chrono::milliseconds(options.write_stall_timeout_ms)};
  std::atomic<bool> serving{false};  // as the health service says
  // Of a request whose client gave none; not to be guessed, since Cancel takes it.
  std::atomic<uint64_t> next_id{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};

  CallContext(Frontend& frontend_in, const ApiKeys& keys, MetricsExporter* metrics_in,
              const GrpcServerOptions& options_in)
      : frontend(frontend_in), api_keys(keys), metrics(metrics_in), options(options_in) {}

  // Before Finish.
  void End(const CallRecord& record, const grpc::Status& status, std::string_view request_id = {}) {
    record.End(frontend.engine(), status, request_id);
    if (metrics != nullptr) metrics->CountGrpc(record.method(), status.error_code());
  }
};

}  // namespace diffserve
