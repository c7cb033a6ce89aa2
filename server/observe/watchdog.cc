// SPDX-License-Identifier: Apache-2.0
#include "server/observe/watchdog.h"

#include <chrono>
#include <string>
#include <utility>

#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

constexpr std::chrono::milliseconds kPeriod{250};

}  // namespace

Watchdog::Watchdog(const Health& health, std::function<EngineStats()> snapshot,
                   WatchdogOptions options)
    : health_(health),
      snapshot_(std::move(snapshot)),
      options_(options),
      thread_([this] { Run(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::Run() {
  const NamedThread named("watchdog", "its next check");
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPeriod, [&] { return stopping_; })) {
    lock.unlock();
    ReportReadiness();
    ReportStall();
    lock.lock();
  }
}

void Watchdog::ReportReadiness() {
  if (health_.draining()) return;
  const Status ready = health_.Ready();
  if (std::exchange(was_ready_, ready.ok()) == ready.ok()) return;
  if (ready.ok()) return Log(LogLevel::kInfo, "ready_again");
  Log(LogLevel::kWarning, "not_ready", {{"reason", ready.message()}});
}

void Watchdog::ReportStall() {
  const EngineStats stats = snapshot_();
  const bool is_stalled = stats.seconds_since_progress > options_.stall_timeout_s;
  if (std::exchange(was_stalled_, is_stalled) == is_stalled) return;
  if (!is_stalled)
    return Log(LogLevel::kInfo, "engine_resumed", {{"step", std::to_string(stats.steps)}});
  Log(LogLevel::kError, "engine_stalled",
      {{"seconds", std::to_string(static_cast<int>(stats.seconds_since_progress))},
       {"steps_done", std::to_string(stats.steps)},
       {"running", std::to_string(stats.running)},
       {"waiting", std::to_string(stats.waiting)},
       {"last_step_tokens", std::to_string(stats.last_step_tokens)}});
  ForEachThread([](const char* name, const char* where, pid_t thread) {
    Log(LogLevel::kError, "thread",
        {{"name", name}, {"activity", where}, {"id", std::to_string(thread)}});
  });
}

}  // namespace diffserve
