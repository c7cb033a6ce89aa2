// SPDX-License-Identifier: Apache-2.0
#include "server/serving/text_pool.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

constexpr size_t kTurnCredit = kShortTextBytes;  // credit that a client gets per turn
constexpr size_t kTaskCost = 4 << 10;            // fixed cost of a task

bool IsLong(size_t bytes) { return bytes > kShortTextBytes; }

}  // namespace

TextPool::TextPool(TextPoolOptions options)
    : options_(options), max_long_running_(std::max(1, options.threads - 1)) {
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
  for (auto& [name, client] : clients_) {
    for (Entry& entry : client.short_tasks) entry.task(false);
    for (Entry& entry : client.long_tasks) entry.task(false);
  }
}

bool TextPool::Fits(const Client* client, size_t bytes) const {
  if (closed_) return false;
  const auto share = [this](size_t limit) {  // rounded up
    return limit - limit / 100 * (100 - options_.max_client_share_percent);
  };
  const size_t own_tasks = client == nullptr ? 0 : client->tasks();
  const size_t own_bytes = client == nullptr ? 0 : client->bytes;
  if (queued_tasks_ >= options_.max_tasks || own_tasks >= share(options_.max_tasks)) return false;
  // A task larger than the byte limit is accepted if nothing else waits; the body limit bounds it.
  if (queued_tasks_ == 0) return true;
  const auto fits = [bytes](size_t held, size_t limit) {
    return bytes <= limit - std::min(limit, held);
  };
  return fits(queued_bytes_, options_.max_bytes) &&
         (own_tasks == 0 || fits(own_bytes, share(options_.max_bytes)));
}

bool TextPool::TrySubmit(const std::string& client, size_t bytes, Task task) {
  {
    std::lock_guard lock(mutex_);
    const auto found = clients_.find(client);
    if (!Fits(found == clients_.end() ? nullptr : &found->second, bytes)) return false;
    if (found == clients_.end()) turns_.push_back(client);
    Client& line = found == clients_.end() ? clients_[client] : found->second;
    (IsLong(bytes) ? line.long_tasks : line.short_tasks).push_back({bytes, std::move(task)});
    line.bytes += bytes;
    queued_bytes_ += bytes;
    ++queued_tasks_;
  }
  wake_.notify_one();
  return true;
}

// The client's next task; nullptr if it is a long one and enough of these run.
std::list<TextPool::Entry>* TextPool::Next(Client& client) const {
  const bool may_run_long = !client.long_tasks.empty() && long_running_ < max_long_running_;
  const bool long_is_due = may_run_long && client.overtakes >= options_.max_overtakes;
  if (!client.short_tasks.empty() && !long_is_due) return &client.short_tasks;
  return may_run_long ? &client.long_tasks : nullptr;
}

// Takes a task of the client whose turn it is.
TextPool::Entry TextPool::TakeFrom(Client& client, std::list<Entry>& tasks) {
  Entry entry = std::move(tasks.front());
  tasks.pop_front();
  client.bytes -= entry.bytes;
  queued_bytes_ -= entry.bytes;
  --queued_tasks_;
  if (IsLong(entry.bytes)) {
    ++long_running_;
    client.overtakes = 0;
  } else if (!client.long_tasks.empty()) {
    ++client.overtakes;
  }
  if (client.empty()) {
    clients_.erase(turns_.front());
    turns_.pop_front();
  }
  return entry;
}

// Deficit round robin: a client runs tasks as long as its credit lasts. nullopt if no task may run
// now.
std::optional<TextPool::Entry> TextPool::Take() {
  size_t passed = 0;  // consecutive clients without a runnable task
  while (passed < turns_.size()) {
    Client& client = clients_.at(turns_.front());
    std::list<Entry>* const tasks = Next(client);
    if (tasks != nullptr) {
      passed = 0;
      const size_t cost = tasks->front().bytes + kTaskCost;
      if (client.credit >= cost) {
        client.credit -= cost;
        return TakeFrom(client, *tasks);
      }
      client.credit += kTurnCredit;
    } else {
      ++passed;
    }
    turns_.splice(turns_.end(), turns_, turns_.begin());
  }
  return std::nullopt;
}

void TextPool::Run() {
  const NamedThread named("text", "the text queue");
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<Entry> entry;
    wake_.wait(lock, [&] { return closed_ || (entry = Take()).has_value(); });
    if (!entry) return;
    lock.unlock();
    {
      const ScopedThreadActivity activity("a task");
      entry->task(true);
    }
    entry->task = nullptr;  // frees its memory before the lock is taken again
    lock.lock();
    if (!IsLong(entry->bytes)) continue;
    --long_running_;
    wake_.notify_one();  // another long task may run now
  }
}

}  // namespace diffserve
