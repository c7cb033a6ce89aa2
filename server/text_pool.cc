#include "server/text_pool.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/thread_registry.h"

namespace diffserve {
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
  for (auto& [bytes, task] : tasks_) task(false);
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

void TextPool::Run() {
  const NamedThread named("text", "the text queue");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
    if (closed_) return;
    auto [bytes, task] = std::move(tasks_.front());
    tasks_.pop_front();
    queued_bytes_ -= bytes;
    lock.unlock();
    try {
      const StandsAt at("a task");
      task(true);
    } catch (const std::exception& error) {  // memory for this piece of work has run out
      Log(LogLevel::kError, "text_work_failed", {{"reason", error.what()}});
    }
    task = nullptr;  // what it holds is freed before the lock is taken again
    lock.lock();
  }
}

}  // namespace diffserve
