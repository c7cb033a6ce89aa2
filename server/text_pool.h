// TextPool: the text threads, which run queued text work. The queue is bounded in tasks and in
// bytes.
// Thread safety: every method may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace diffserve {

struct TextPoolOptions {
  int threads = 1;
  size_t max_tasks = 1024;
  size_t max_bytes = size_t{64} << 20;
};

class TextPool {
 public:
  using Task = std::function<void(bool run)>;  // false: the pool ends before the task's turn

  explicit TextPool(TextPoolOptions options);
  ~TextPool();  // abandons what is queued, joins
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // False if the queue is full; `bytes` is what the task holds.
  bool TrySubmit(size_t bytes, Task task);

 private:
  void Run();

  const TextPoolOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<size_t, Task>> tasks_;
  size_t queued_bytes_ = 0;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace diffserve
