// SPDX-License-Identifier: Apache-2.0
// TextPool: the text threads, which run queued text work. The queue is bounded in tasks and in
// bytes. It is fair between clients: each in turn may run a fixed number of bytes. A client's short
// tasks go first, but only a bounded number of them overtakes a long one. Long tasks never take the
// last thread, so a short task never waits for a long one to end.
// Thread safety: every method may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace diffserve {

// Texts up to this size are tokenized within a few milliseconds.
inline constexpr size_t kShortTextBytes = 64 << 10;

struct TextPoolOptions {
  int threads = 1;
  size_t max_tasks = 1024;
  size_t max_bytes = size_t{64} << 20;
  size_t max_client_share_percent = 75;  // of both limits; the rest is for other clients
  int max_overtakes = 16;                // short tasks that may overtake a client's oldest long one
};

class TextPool {
 public:
  using Task = std::function<void(bool run)>;  // false: the pool ends before the task's turn

  explicit TextPool(TextPoolOptions options);
  ~TextPool();  // abandons queued tasks and joins the threads
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // False if the queue is full, or the client's share of it. `bytes`: the memory that the task
  // holds.
  bool TrySubmit(const std::string& client, size_t bytes, Task task);

 private:
  struct Entry {
    size_t bytes = 0;
    Task task;
  };
  struct Client {
    std::list<Entry> short_tasks, long_tasks;
    size_t bytes = 0;  // of all tasks
    size_t credit = 0;
    int overtakes = 0;  // since a long task began
    bool empty() const { return short_tasks.empty() && long_tasks.empty(); }
    size_t tasks() const { return short_tasks.size() + long_tasks.size(); }
  };

  bool Fits(const Client* client, size_t bytes) const;
  std::list<Entry>* Next(Client& client) const;
  std::optional<Entry> Take();
  Entry TakeFrom(Client& client, std::list<Entry>& tasks);
  void Run();

  const TextPoolOptions options_;
  const int max_long_running_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<std::string, Client> clients_;  // those with tasks
  std::list<std::string> turns_;                     // the same, in their order
  size_t queued_tasks_ = 0;
  size_t queued_bytes_ = 0;
  int long_running_ = 0;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace diffserve
