// Health: whether the server should be sent work. One object for HTTP's /readyz and gRPC's health
// service; the serve command flips it to draining first of all at SIGTERM.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "engine/stats.h"
#include "kernels/base/status.h"

namespace diffserve {

struct HealthOptions {
  double max_seconds_without_progress = 5;  // an engine with work that finishes no step for so long
                                            // is not ready
  int max_corrupted_in_a_row = 8;  // a server whose last answers all ended by logits that were not
                                   // finite is not ready until one ends well
};

class Health {
 public:
  // `snapshot` is Engine::Snapshot, or nothing for a server without an engine.
  explicit Health(std::function<EngineStats()> snapshot, HealthOptions options = {});

  void BeginDrain();
  // The engine has died; never ready again.
  void Fail(std::string reason);
  bool draining() const { return draining_.load(std::memory_order_relaxed); }

  // Ok, or kUnavailable with the reason: draining, failed, short of memory, no progress, or nothing
  // but corrupted answers.
  Status Ready() const;

 private:
  const std::function<EngineStats()> snapshot_;
  const HealthOptions options_;
  std::atomic<bool> draining_{false};
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace diffserve
