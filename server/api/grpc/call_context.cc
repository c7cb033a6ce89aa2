// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/call_context.h"

#include "kernels/process/thread_registry.h"

namespace diffserve {

using std::chrono::steady_clock;

void WriteStarter::Run() {
  const NamedThread named("grpc-write", "its queue");
  std::unique_lock lock(mutex_);
  const auto woken = [this] { return stopping_ || !calls_.empty(); };
  while (true) {
    // Watch wakes it too, so that it sets a time for the next check.
    if (watched_.empty())
      wake_.wait(lock, [&] { return woken() || !watched_.empty(); });
    else
      wake_.wait_until(lock, next_look_, woken);
    if (!watched_.empty() && steady_clock::now() >= next_look_) EndStalled(lock);
    if (stopping_ && calls_.empty()) return;
    if (calls_.empty()) continue;
    const std::weak_ptr<WatchedCall> next = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    std::shared_ptr<WatchedCall> call = next.lock();
    if (call != nullptr) {
      call->queued_.store(false);
      call->Advance();
    }
    call.reset();
    lock.lock();
  }
}

// Checks all watched calls, without the lock; forgets calls that are over.
void WriteStarter::EndStalled(std::unique_lock<std::mutex>& lock) {
  const steady_clock::time_point now = steady_clock::now();
  next_look_ = now + stall_timeout_ / 4;
  std::erase_if(watched_, [](const auto& call) { return call.expired(); });
  const std::vector<std::weak_ptr<WatchedCall>> watched = watched_;
  lock.unlock();
  for (const std::weak_ptr<WatchedCall>& weak : watched) {
    if (const std::shared_ptr<WatchedCall> call = weak.lock())
      call->EndIfStalled(now - stall_timeout_);
  }
  lock.lock();
}

}  // namespace diffserve
