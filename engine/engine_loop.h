// SPDX-License-Identifier: Apache-2.0
// EngineLoop: the work of the engine thread. It is the only owner of the Scheduler (with PagePool,
// PrefixIndex and Sequences) and the Executor. All methods except seconds_since_progress are called
// on that thread. Clock and hash key are injected, so that a test can drive the loop turn by turn
// from a seed.
//
// Invariant: between turns, fewer than depth_ steps are launched and not collected; none if there
// is nothing to do.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/contract/options.h"
#include "engine/executor.h"
#include "engine/inbox.h"
#include "engine/policy/scheduler.h"
#include "engine/stats_recorder.h"

namespace diffserve {

class EngineLoop {
 public:
  // The loop's surroundings, which a test replaces.
  struct World {
    std::function<TimePoint()> now;  // called from any thread
    uint64_t hash_key = 0;           // for the prefix index, like hash_mask
    uint64_t hash_mask = ~0ull;
    std::function<void(TokenEvent)> deliver;
    std::function<void(const EngineStats&)> publish;      // called before the events that the
                                                          // statistics count are delivered
    std::function<void(std::vector<KvEvent>)> kv_events;  // called with a non-empty list, before
                                                          // the tokens of the same turn are
                                                          // delivered; may be nullptr
    PageTier* tier = nullptr;                             // outlives the loop
  };
  EngineLoop(const EngineOptions& options, std::unique_ptr<Executor> executor, Inbox& inbox,
             World world);

  // Runs one turn; first sleeps if there is nothing to do. False: the inbox asks to stop.
  // Exceptions of the executor pass through.
  bool Turn();

  // Nothing to do but to wait for the inbox, or for the second tier.
  bool idle() const { return launched_.empty() && (!scheduler_.HasWork() || is_stalled_); }
  // After the last turn: writes the pages still queued for the second tier, at most until
  // `deadline`.
  void KeepOffers(TimePoint deadline);
  const Scheduler& scheduler() const { return scheduler_; }
  // 0 while there is nothing to do. Any thread.
  double seconds_since_progress() const;

 private:
  void Accept(Inbox::Incoming incoming);
  void End(RequestId request, const Inbox::Ending& how);
  bool Launch();
  void Collect();
  void EndOverdue();
  Inbox::Incoming Take(bool wait);
  StepResult Await();
  StepCosts CostsAt(TimePoint now) const;
  void Publish();
  int64_t NowNs() const {
    return std::chrono::nanoseconds(world_.now().time_since_epoch()).count();
  }

  const World world_;
  std::unique_ptr<Executor> executor_;
  const int depth_;  // Executor::depth(), but 1 with proposals: they follow known tokens
  const double max_step_seconds_;  // while sequences decode; 0: no limit
  Inbox& inbox_;
  Scheduler scheduler_;
  StatsRecorder recorder_;
  std::deque<StepRecord> launched_;        // not collected yet, oldest first
  bool is_stalled_ = false;                // transfers hold the pages that the next step needs
  std::vector<TokenEvent> events_;         // of this turn of the loop
  std::atomic<int64_t> busy_since_ns_{0};  // when the last step ended or work came in; 0 when idle
};

}  // namespace diffserve
