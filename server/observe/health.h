// SPDX-License-Identifier: Apache-2.0
// Health: whether the server is ready for work. HTTP's /readyz and gRPC's health service share one
// object. At SIGTERM the serve command first sets it to draining.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "engine/contract/stats.h"
#include "kernels/base/status.h"

namespace diffserve {

struct HealthOptions {
  double max_seconds_without_progress = 5;  // an engine with work and no finished step for longer
                                            // is not ready
  int max_corrupted_in_a_row = 8;  // a server whose last answers all ended by logits that were not
                                   // finite is not ready until one ends well
};

class Health {
 public:
  // `snapshot` is Engine::Snapshot, or empty for a server without an engine.
  explicit Health(std::function<EngineStats()> snapshot, HealthOptions options = {});

  void BeginDrain();
  // Marks the engine as failed: never ready again.
  void Fail(std::string reason);
  bool draining() const { return draining_.load(std::memory_order_relaxed); }

  // OK, or kUnavailable with the reason: draining, failed, no progress, or only corrupted answers.
  Status Ready() const;

 private:
  const std::function<EngineStats()> snapshot_;
  const HealthOptions options_;
  std::atomic<bool> draining_{false};
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace diffserve
