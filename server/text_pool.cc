#include "server/text_pool.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/log.h"

namespace diffserve {
namespace {

// What may run out here is memory, for one piece of work; the thread goes on.
template <typename Function>
void Guarded(const Function& function) {
  try {
    function();
  } catch (const std::exception& error) {
    Log(LogLevel::kError, "text_work_failed", {{"reason", error.what()}});
  }
}

}  // namespace

TextPool::TextPool(TextPoolOptions options) : options_(options) {
  DS_CHECK(options_.threads >= 1, "the text pool needs a thread");
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

TextPool::~TextPool() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (auto& [bytes, task] : tasks_) task(Outcome::kAbandoned);
}

bool TextPool::TrySubmit(size_t bytes, Task task) {
  {
    std::lock_guard lock(mutex_);
    // A single task larger than the byte limit is let in when nothing else waits: the body limit
    // has bounded it already.
    const bool bytes_fit = queued_bytes_ == 0 ||
                           bytes <=
                               options_.max_bytes - std::min(options_.max_bytes, queued_bytes_);
    if (closed_ || tasks_.size() >= options_.max_tasks || !bytes_fit) return false;
    tasks_.emplace_back(bytes, std::move(task));
    queued_bytes_ += bytes;
  }
  wake_.notify_one();
  return true;
}

void TextPool::At(Clock::time_point when, std::weak_ptr<void> while_alive,
                  std::function<void()> action) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    if (timers_.size() >= sweep_at_) SweepTimers();
    timers_.emplace(when, Timer{std::move(while_alive), std::move(action)});
  }
  wake_.notify_one();
}

void TextPool::SweepTimers() {
  std::erase_if(timers_, [](const auto& entry) { return entry.second.while_alive.expired(); });
  sweep_at_ = std::max<size_t>(256, timers_.size() * 2);
}

void TextPool::Run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    if (!timers_.empty() && timers_.begin()->first <= Clock::now()) {
      const Timer timer = std::move(timers_.extract(timers_.begin()).mapped());
      lock.unlock();
      if (const auto alive = timer.while_alive.lock()) Guarded(timer.action);
      lock.lock();
    } else if (!tasks_.empty()) {
      auto [bytes, task] = std::move(tasks_.front());
      tasks_.pop_front();
      queued_bytes_ -= bytes;
      lock.unlock();
      Guarded([&task = task] { task(Outcome::kRun); });
      task = nullptr;  // what it holds is freed before the lock is taken again
      lock.lock();
    } else if (timers_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_until(lock, timers_.begin()->first);
    }
  }
}

}  // namespace diffserve
