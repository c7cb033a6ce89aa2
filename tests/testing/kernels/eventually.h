// SPDX-License-Identifier: Apache-2.0
// Eventually: waits for a state that other threads reach without a signal.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace diffserve::testing {

// Waits until `condition` holds and returns true. The limit is far beyond what the slowest machine
// needs.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace diffserve::testing
