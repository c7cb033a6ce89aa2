// TextPool: the text threads. They run queued text work and, between two pieces of work, whatever
// deadline has passed; there is no timer thread and no polling. The queue is bounded in tasks and
// in bytes.
// Thread safety: every method may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace diffserve {

struct TextPoolOptions {
  int threads = 1;
  size_t max_tasks = 1024;
  size_t max_bytes = size_t{64} << 20;
};

class TextPool {
 public:
  enum class Outcome { kRun, kAbandoned };  // kAbandoned: the pool ends before the task's turn
  using Task = std::function<void(Outcome)>;
  using Clock = std::chrono::steady_clock;

  explicit TextPool(TextPoolOptions options);
  ~TextPool();  // abandons what is queued, joins
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // False if the queue is full; `bytes` is what the task holds.
  bool TrySubmit(size_t bytes, Task task);
  // Runs `action` on a text thread at `when`, unless `while_alive` has expired by then.
  void At(Clock::time_point when, std::weak_ptr<void> while_alive, std::function<void()> action);

 private:
  struct Timer {
    std::weak_ptr<void> while_alive;
    std::function<void()> action;
  };
  void Run();
  void SweepTimers();  // REQUIRES: mutex_ held

  const TextPoolOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<size_t, Task>> tasks_;
  size_t queued_bytes_ = 0;
  std::multimap<Clock::time_point, Timer> timers_;
  size_t sweep_at_ = 256;  // timers; those of ended requests are dropped when there are so many
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace diffserve
