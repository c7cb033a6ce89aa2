// Watchdog: a thread that looks at the engine's progress about four times a second. A step that
// takes longer than the stall timeout is told in the log once, with where each thread stands, and
// ends the process if it shall; a change of readiness is told too, with its reason.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/stats.h"
#include "server/health.h"

namespace diffserve {

struct WatchdogOptions {
  double stall_timeout_s = 30;
  bool exit_on_stall = false;  // with exit code 1 and without any other work, for a supervisor that
                               // starts it anew
};

class Watchdog {
 public:
  // Both outlive this.
  Watchdog(const Health& health, std::function<EngineStats()> snapshot, WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Run();
  void TellReadiness();
  void TellStall();

  const Health& health_;
  const std::function<EngineStats()> snapshot_;
  const WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  bool was_ready_ = true, was_stalled_ = false;  // watchdog thread only
  std::thread thread_;                           // last: it uses all of the above
};

}  // namespace diffserve
