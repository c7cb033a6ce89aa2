// SPDX-License-Identifier: Apache-2.0
// A queue between threads with a capacity. The name of each push says what a full queue does to it:
// TryPush is refused, PushWait waits for space, PushUnbounded appends beyond the capacity.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

namespace diffserve {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False if the queue is full or closed; `item` is then untouched.
  bool TryPush(T&& item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Waits while the queue is full; false if it is closed. For producers that may be slowed down
  // (engine -> output).
  bool PushWait(T&& item) {
    {
      std::unique_lock lock(mutex_);
      space_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Appends even if the queue is full, for messages that are bounded by other means. Never waits.
  // False if the queue is closed.
  bool PushUnbounded(T item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Waits for an item; nullopt once the queue is closed and empty.
  std::optional<T> Pop() { return PopUntil(std::chrono::steady_clock::time_point::max()); }

  // Like Pop, but returns nullopt if no item has come by `limit`.
  std::optional<T> PopUntil(std::chrono::steady_clock::time_point limit) {
    std::unique_lock lock(mutex_);
    ready_.wait_until(lock, limit, [&] { return closed_ || !items_.empty(); });
    return TakeFront();
  }

  std::optional<T> TryPop() {
    std::unique_lock lock(mutex_);
    return TakeFront();
  }

  // Wakes every waiter; items already queued can still be popped.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
    space_.notify_all();
  }

  // Closed, and nothing is left.
  bool finished() const {
    std::lock_guard lock(mutex_);
    return closed_ && items_.empty();
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> TakeFront() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    space_.notify_one();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable space_;
  std::list<T> items_;
  bool closed_ = false;
};

}  // namespace diffserve
