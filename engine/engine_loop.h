// EngineLoop: what the engine thread does. It alone owns the Scheduler (with PagePool, PrefixIndex
// and Sequences) and the Executor; everything here but seconds_since_progress is called on that
// thread.
//
// Invariant: between turns fewer than Executor::depth() steps are launched and not collected, none
// if there is nothing to do.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/executor.h"
#include "engine/inbox.h"
#include "engine/options.h"
#include "engine/scheduler.h"
#include "engine/stats_recorder.h"

namespace diffserve {

class EngineLoop {
 public:
  struct Outputs {
    std::function<void(TokenEvent)> deliver;
    std::function<void(const EngineStats&)> publish;  // before the events that the statistics count
                                                      // are delivered
    std::function<void(std::vector<KvEvent>)> kv_events;  // not empty, and before the tokens of the
                                                          // same turn; may be nullptr
  };
  EngineLoop(const EngineOptions& options, std::unique_ptr<Executor> executor, Inbox& inbox,
             Outputs outputs);

  // Returns when the inbox says stop. What the executor throws passes through.
  void Run();

  // 0 while there is nothing to do. Any thread.
  double seconds_since_progress() const;

 private:
  struct LaunchedStep {
    StepPlan plan;
    StatsRecorder::StepTimes times;
  };
  struct Leaving {
    RequestId request = 0;
    uint64_t last_step = 0;  // no later one contains it
  };
  void Accept(Inbox::Incoming incoming);
  void End(RequestId request, const Inbox::Ending& how);
  bool Launch();
  void Collect();
  void LetGo();
  void Publish();

  std::unique_ptr<Executor> executor_;
  Inbox& inbox_;
  const Outputs outputs_;
  Scheduler scheduler_;
  StatsRecorder recorder_;
  std::deque<LaunchedStep> launched_;  // not collected yet, oldest first
  std::deque<Leaving> leaving_;        // ended, but the executor may still need them, by last_step
  std::vector<TokenEvent> events_;     // of this turn of the loop
  std::atomic<int64_t> busy_since_ns_{0};  // steady clock: when the last step ended or work came
                                           // in; 0 when idle
};

}  // namespace diffserve
