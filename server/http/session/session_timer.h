// SPDX-License-Identifier: Apache-2.0
// SessionTimer: one deadline of a connection. It waits once at a time: a deadline that moves
// further away is noticed when the earlier one has passed, because most are moved with every
// request. Thread safety: only on its loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace diffserve {

class SessionTimer {
 public:
  explicit SessionTimer(boost::asio::io_context& loop) : timer_(loop) {}

  // Call once, before the first Arm. `owner` holds this timer; after its end nothing is called.
  void OnExpiry(std::weak_ptr<void> owner, std::function<void()> expired) {
    owner_ = std::move(owner);
    expired_ = std::move(expired);
  }
  // Sets the deadline, or moves it.
  void Arm(std::chrono::steady_clock::time_point deadline);
  void Disarm() { is_armed_ = false; }
  void Cancel();  // disarms it and ends the wait
  bool is_armed() const { return is_armed_; }

 private:
  void OnWaited();

  boost::asio::steady_timer timer_;
  std::weak_ptr<void> owner_;
  std::function<void()> expired_;
  std::chrono::steady_clock::time_point deadline_;
  bool is_armed_ = false, is_waiting_ = false;
};

}  // namespace diffserve
