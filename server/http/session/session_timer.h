// SPDX-License-Identifier: Apache-2.0
// SessionTimer: one deadline of a connection. It waits once at a time: a deadline that moves
// further away is noticed when the earlier one has passed, because most are moved with every
// request. Thread safety: only on its loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <utility>

namespace diffserve {

// `Timer`: asio's, or one whose time a test sets.
template <typename Timer>
class BasicSessionTimer {
 public:
  using Clock = typename Timer::clock_type;

  template <typename Loop>
  explicit BasicSessionTimer(Loop& loop) : timer_(loop) {}

  // Call once, before the first Arm. `owner` holds this timer; after its end nothing is called.
  void OnExpiry(std::weak_ptr<void> owner, std::function<void()> expired) {
    owner_ = std::move(owner);
    expired_ = std::move(expired);
  }
  // Sets the deadline, or moves it.
  void Arm(typename Clock::time_point deadline) {
    const bool is_sooner = deadline < deadline_;
    is_armed_ = true;
    deadline_ = deadline;
    if (is_waiting_ && !is_sooner) return;
    is_waiting_ = true;
    timer_.expires_at(deadline);
    timer_.async_wait([this, owner = owner_](const boost::system::error_code& error) {
      const auto held = owner.lock();  // what is called may end its owner
      if (error || held == nullptr) return;
      OnWaited();
    });
  }
  void Disarm() { is_armed_ = false; }
  // Disarms it and ends the wait.
  void Cancel() {
    is_armed_ = is_waiting_ = false;
    timer_.cancel();
  }
  bool is_armed() const { return is_armed_; }

 private:
  void OnWaited() {
    is_waiting_ = false;
    if (!is_armed_) return;
    if (Clock::now() < deadline_) return Arm(deadline_);
    is_armed_ = false;
    expired_();
  }

  Timer timer_;
  std::weak_ptr<void> owner_;
  std::function<void()> expired_;
  typename Clock::time_point deadline_;
  bool is_armed_ = false, is_waiting_ = false;
};

using SessionTimer = BasicSessionTimer<boost::asio::steady_timer>;

}  // namespace diffserve
