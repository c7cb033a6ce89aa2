// SPDX-License-Identifier: Apache-2.0
// PendingResult: a result that another thread delivers to a connection.
// Thread safety: Fill may be called from any thread, once; Take from any thread.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/base/status.h"

namespace diffserve {

template <typename T>
class PendingResult {
 public:
  // `wake` is called once the result is there.
  explicit PendingResult(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Fill(Result<T> result) {
    {
      std::lock_guard lock(mutex_);
      result_ = std::move(result);
    }
    wake_();
  }
  // The result, once; nullopt if it is not there yet.
  std::optional<Result<T>> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(result_, std::nullopt);
  }

 private:
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::optional<Result<T>> result_;
};

}  // namespace diffserve
