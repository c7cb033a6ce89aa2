// SPDX-License-Identifier: Apache-2.0
#include "server/http/session/session_timer.h"

namespace diffserve {

void SessionTimer::Arm(std::chrono::steady_clock::time_point deadline) {
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

void SessionTimer::OnWaited() {
  is_waiting_ = false;
  if (!is_armed_) return;
  if (std::chrono::steady_clock::now() < deadline_) return Arm(deadline_);
  is_armed_ = false;
  expired_();
}

void SessionTimer::Cancel() {
  is_armed_ = is_waiting_ = false;
  timer_.cancel();
}

}  // namespace diffserve
