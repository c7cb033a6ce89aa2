// EngineLoop: what the engine thread does. It alone owns the Scheduler (with PagePool, PrefixIndex and Sequences) and the
// Executor; everything here but seconds_since_progress is called on that thread.
#pragma once

#include <atomic>
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
    std::function<void(const EngineStats&)> publish;  // before the events that the statistics count are delivered
  };
  EngineLoop(const EngineOptions& options, std::unique_ptr<Executor> executor, Inbox& inbox, Outputs outputs);

  // Returns when the inbox says stop. What the executor throws passes through.
  void Run();

  // 0 while there is nothing to do. Any thread.
  double seconds_since_progress() const;

 private:
  void Accept(Inbox::Incoming incoming);
  void End(RequestId request, const Inbox::Ending& how);
  void Step();
  void Publish();

  std::unique_ptr<Executor> executor_;
  Inbox& inbox_;
  const Outputs outputs_;
  Scheduler scheduler_;
  StatsRecorder recorder_;
  std::vector<TokenEvent> events_;  // of this turn of the loop
  std::atomic<int64_t> busy_since_ns_{0};  // steady clock: when the last step ended or work came in; 0 when idle
};

}  // namespace diffserve
