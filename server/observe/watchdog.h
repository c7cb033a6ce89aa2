// SPDX-License-Identifier: Apache-2.0
// Watchdog: a thread that checks the engine's progress about four times per second. A step that
// takes longer than the stall timeout is logged once, with each thread's activity. A change of
// readiness is logged too, with its reason.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/contract/stats.h"
#include "server/observe/health.h"

namespace diffserve {

struct WatchdogOptions {
  double stall_timeout_s = 30;
};

class Watchdog {
 public:
  // Both outlive this.
  Watchdog(const Health& health, std::function<EngineStats()> snapshot,
           WatchdogOptions options = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Run();
  void ReportReadiness();
  void ReportStall();

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
