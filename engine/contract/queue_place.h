// SPDX-License-Identifier: Apache-2.0
// QueuePlace: the place in the queue of a request that is still in its text work, so that later
// requests wait after it. Submit takes it for the request; the last owner gives up one that was not
// taken. Thread safety: one thread at a time uses it, and any thread may destroy it.
#pragma once

#include <functional>
#include <utility>

namespace diffserve {

class QueuePlace {
 public:
  explicit QueuePlace(std::function<void()> give_up) : give_up_(std::move(give_up)) {}
  ~QueuePlace() {
    if (!taken_) give_up_();
  }
  QueuePlace(const QueuePlace&) = delete;
  QueuePlace& operator=(const QueuePlace&) = delete;

  void Take() { taken_ = true; }

 private:
  const std::function<void()> give_up_;
  bool taken_ = false;
};

}  // namespace diffserve
