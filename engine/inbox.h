// Inbox: the one place where other threads meet the engine thread. It takes requests and
// cancellations in, refuses what is too much, and knows which accepted requests have not had their
// terminal event yet.
//
// Thread safety: every method may be called from any thread; none holds the lock while it calls
// out.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/options.h"
#include "engine/request.h"
#include "engine/stats.h"

namespace diffserve {

class Inbox {
 public:
  explicit Inbox(const EngineOptions& options) : options_(options) {}

  // For clients of the engine: as in engine.h.
  Status Submit(Request request);
  void Cancel(RequestId request, FinishReason as);
  void Drain(std::chrono::steady_clock::time_point deadline);
  void CountRefusal(RefusalReason reason);
  // The engine thread shall end.
  void Stop();

  struct Ending {
    RequestId request = 0;
    FinishReason finish = FinishReason::kCancelled;
    Status error;
  };
  // What came in since the last call.
  struct Incoming {
    std::vector<Request> requests;
    std::vector<Ending> cancels;
    std::optional<Ending> end_all;  // all requests are to be ended now, in this way
    bool stop = false;              // the engine thread is to end after that
    bool failed = false;            // it is to end at once: everybody has been told already
  };
  // Sleeps until something comes in if `wait`.
  Incoming Take(bool wait);
  // The scheduler's queue after a step; counts against the bounds together with what has not been
  // taken yet.
  void SetWaiting(int requests, int64_t tokens);
  bool IsLive(RequestId request) const;
  void Finish(RequestId request);

  // Refuses everything from now on; returns the requests that still wait for their terminal event.
  std::vector<RequestId> Fail();
  bool failed() const;

  // Adds refusals, queue and state to a snapshot.
  void Describe(EngineStats& stats) const;

 private:
  Status Refuse(RefusalReason reason, StatusCode code, std::string message);

  const EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;      // for Take
  std::condition_variable all_done_;  // for Drain
  std::vector<Request> requests_;
  std::vector<Ending> cancels_;
  std::unordered_map<RequestId, bool> live_;  // accepted, no terminal event yet -> a cancellation
                                              // was asked for
  int waiting_requests_ = 0;                  // in the inbox and in the scheduler
  int64_t waiting_tokens_ = 0;
  std::array<uint64_t, static_cast<size_t>(RefusalReason::kCount)> refused_{};
  bool draining_ = false;
  bool end_all_ = false;  // the drain's deadline has passed
  bool failed_ = false;
  bool stop_ = false;
};

}  // namespace diffserve
