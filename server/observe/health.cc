// SPDX-License-Identifier: Apache-2.0
#include "server/observe/health.h"

#include <utility>

namespace diffserve {

Health::Health(std::function<EngineStats()> snapshot, HealthOptions options)
    : snapshot_(std::move(snapshot)), options_(options) {}

void Health::BeginDrain() { draining_.store(true, std::memory_order_relaxed); }

void Health::Fail(std::string reason) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason.empty() ? "the engine has failed" : std::move(reason);
}

Status Health::Ready() const {
  if (draining()) return Status(StatusCode::kUnavailable, "the server is draining");
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return Status(StatusCode::kUnavailable, failure_);
  }
  if (!snapshot_) return {};
  const EngineStats stats = snapshot_();
  if (stats.failed) return Status(StatusCode::kUnavailable, "the engine has failed");
  if (stats.draining) return Status(StatusCode::kUnavailable, "the engine is draining");
  if (stats.seconds_since_progress > options_.max_seconds_without_progress) {
    return Status(StatusCode::kUnavailable,
                  "the engine has work and has finished no step for " +
                      std::to_string(static_cast<int>(stats.seconds_since_progress)) + " s");
  }
  if (stats.corrupted_in_a_row >= options_.max_corrupted_in_a_row) {
    return Status(StatusCode::kUnavailable,
                  "the last " + std::to_string(stats.corrupted_in_a_row) +
                      " answers ended because their logits were not finite");
  }
  return {};
}

}  // namespace diffserve
