// SPDX-License-Identifier: Apache-2.0
// Inbox: the only place where other threads meet the engine thread. It accepts requests and
// cancellations, refuses what exceeds the limits, and tracks the accepted requests that have not
// had their terminal event.
//
// Thread safety: every method may be called from any thread; none holds the lock while it calls
// out.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/contract/options.h"
#include "engine/contract/page_tier.h"
#include "engine/contract/request.h"
#include "engine/contract/stats.h"
#include "engine/policy/queue_state.h"

namespace diffserve {

class Inbox {
 public:
  // `now` is called from any thread.
  explicit Inbox(
      const EngineOptions& options,
      std::function<TimePoint()> now = [] { return std::chrono::steady_clock::now(); })
      : options_(options), now_(std::move(now)) {}

  // The same as in engine.h.
  Status Submit(Request request);
  Result<std::shared_ptr<QueuePlace>> Announce(uint64_t client, TimePoint start_by);
  void Cancel(RequestId request, FinishReason as);
  void Drain(std::chrono::steady_clock::time_point deadline);
  void CountRefusal(RefusalReason reason);
  void ResetPrefixCache(CacheReset which);
  // Lets Take return, because something outside the inbox has happened.
  void Wake();
  // Waits for a Wake since the last Take or AwaitWake; false at the deadline.
  bool AwaitWake(TimePoint deadline);
  // Asks the engine thread to end.
  void Stop();

  struct Ending {
    RequestId request = 0;
    FinishReason finish = FinishReason::kCancelled;
    Status error;
  };
  // Everything that arrived since the last call of Take.
  struct Incoming {
    CacheReset cache_reset;  // applies before the requests below
    std::vector<Request> requests;
    std::vector<Ending> cancels;
    std::optional<Ending> end_all;  // end all requests now, in this way
    bool stop = false;              // end the engine thread after that
    bool failed = false;            // end it at once: every request has had its terminal event
  };
  // If `wait`, sleeps until something arrives, or until `deadline`.
  Incoming Take(bool wait, std::optional<TimePoint> deadline = std::nullopt);
  // Sets the scheduler's queue after a step. It counts against the limits together with the
  // requests that have not been taken yet.
  void SetQueue(QueueState queue);
  // Counts a request that has waited too long and returns the error for it.
  Status RefuseOverdue(const Request& request, TimePoint now);
  bool IsLive(RequestId request) const;
  void Finish(RequestId request);

  // Refuses everything from now on; returns the requests that still need their terminal event.
  std::vector<RequestId> Fail();
  bool failed() const;

  // Adds refusals, queue and state to `stats`.
  void Describe(EngineStats& stats) const;

 private:
  Status Refuse(RefusalReason reason, Status status);
  Status CheckRoom(uint64_t client, int64_t tokens, TimePoint start_by);
  void LeavePlace(uint64_t client);

  const EngineOptions options_;
  const std::function<TimePoint()> now_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;      // signals Take
  std::condition_variable all_done_;  // signals Drain
  std::vector<Request> requests_;
  std::vector<Ending> cancels_;
  std::unordered_map<RequestId, bool> live_;  // accepted, without terminal event -> whether a
                                              // cancellation was requested
  QueueState queue_;                          // inbox and scheduler together
  std::map<uint64_t, int> announced_;         // by client; no zeros
  std::array<uint64_t, static_cast<size_t>(RefusalReason::kCount)> refused_{};
  CacheReset cache_reset_;
  bool woken_ = false;
  bool draining_ = false;
  bool end_all_ = false;  // the drain's deadline has passed
  bool failed_ = false;
  bool stop_ = false;
};

}  // namespace diffserve
