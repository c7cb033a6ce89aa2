// Eventually: for states that other threads reach by themselves, without anything to wait on.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace diffserve::testing {

// Waits until `condition` holds (true); the limit is far beyond what the slowest machine needs.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace diffserve::testing
