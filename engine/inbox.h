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
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/line_state.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/stats.h"

namespace diffserve {

class Inbox {
 public:
  // `now`: from any thread.
  explicit Inbox(
      const EngineOptions& options,
      std::function<TimePoint()> now = [] { return std::chrono::steady_clock::now(); })
      : options_(options), now_(std::move(now)) {}

  // For clients of the engine: as in engine.h. Submit throws std::bad_alloc without effect, Cancel
  // asks for no memory.
  Status Submit(Request request);
  Status CheckLine(uint64_t client, TimePoint start_by);
  void Cancel(RequestId request, FinishReason as) noexcept;
  void Drain(std::chrono::steady_clock::time_point deadline);
  void CountRefusal(RefusalReason reason);
  void ResetPrefixCache();
  // The engine thread shall end.
  void Stop();

  struct Ending {
    RequestId request = 0;
    FinishReason finish = FinishReason::kCancelled;
    Status error;
  };
  // What came in since the last call.
  struct Incoming {
    bool reset_prefix_cache = false;  // before any of the requests
    std::vector<Request> requests;
    std::vector<Ending> cancels;
    std::optional<Ending> end_all;  // all requests are to be ended now, in this way
    bool stop = false;              // the engine thread is to end after that
    bool failed = false;            // it is to end at once: everybody has been told already
  };
  // Sleeps until something comes in if `wait`.
  Incoming Take(bool wait);
  // The scheduler's line after a step; counts against the bounds together with what has not been
  // taken yet.
  void SetLine(LineState line);
  // Counts a request that has waited too long, and says so.
  Status RefuseOverdue(const Request& request, TimePoint now);
  bool IsLive(RequestId request) const;
  void Finish(RequestId request);

  // Refuses everything from now on; returns the requests that still wait for their terminal event.
  std::vector<RequestId> Fail();
  bool failed() const;

  // Adds refusals, queue and state to a snapshot.
  void Describe(EngineStats& stats) const;

 private:
  Status Refuse(RefusalReason reason, Status status);
  Status CheckRoom(uint64_t client, int64_t tokens, TimePoint start_by);
  void MakeRoomForOne();

  const EngineOptions options_;
  const std::function<TimePoint()> now_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;      // for Take
  std::condition_variable all_done_;  // for Drain
  std::vector<Request> requests_;
  std::vector<Ending> cancels_;               // has room for all that live
  std::unordered_map<RequestId, bool> live_;  // accepted, no terminal event yet -> a cancellation
                                              // was asked for
  LineState line_;                            // of the inbox and the scheduler together
  std::array<uint64_t, static_cast<size_t>(RefusalReason::kCount)> refused_{};
  bool reset_prefix_cache_ = false;
  bool draining_ = false;
  bool end_all_ = false;  // the drain's deadline has passed
  bool failed_ = false;
  bool stop_ = false;
};

}  // namespace diffserve
