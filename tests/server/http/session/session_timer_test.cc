// SPDX-License-Identifier: Apache-2.0
#include "server/http/session/session_timer.h"

#include <gtest/gtest.h>

#include <boost/asio/error.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace diffserve {
namespace {

using std::chrono::milliseconds;

// A clock that shows what the test has set.
struct SetClock {
  using duration = milliseconds;
  using time_point = std::chrono::time_point<SetClock, milliseconds>;
  static time_point now() { return time; }
  static inline time_point time;
};

// The loop of one timer. As asio's, it calls handlers in Run only, and a wait that has ended is
// cancelled no more.
class SetLoop {
 public:
  using Handler = std::function<void(const boost::system::error_code&)>;

  void WaitUntil(SetClock::time_point time, Handler handler) {
    ++waits;
    wait_ = {time, std::move(handler)};
  }
  void Cancel() {
    if (!wait_) return;
    ended_.push_back(
        [handler = std::move(wait_->second)] { handler(boost::asio::error::operation_aborted); });
    wait_.reset();
  }
  // The clock shows `ms`. A wait that has ended gets its handler queued.
  void PassTo(int ms) {
    SetClock::time = SetClock::time_point(milliseconds(ms));
    if (!wait_ || SetClock::now() < wait_->first) return;
    ended_.push_back([handler = std::move(wait_->second)] { handler({}); });
    wait_.reset();
  }
  void Run() {
    while (!ended_.empty()) {
      const std::function<void()> next = std::move(ended_.front());
      ended_.pop_front();
      next();
    }
  }
  void RunAt(int ms) {
    PassTo(ms);
    Run();
  }

  int waits = 0;

 private:
  std::optional<std::pair<SetClock::time_point, Handler>> wait_;
  std::deque<std::function<void()>> ended_;
};

class SetTimer {
 public:
  using clock_type = SetClock;

  explicit SetTimer(SetLoop& loop) : loop_(loop) {}
  void expires_at(SetClock::time_point time) {
    loop_.Cancel();
    time_ = time;
  }
  void async_wait(SetLoop::Handler handler) { loop_.WaitUntil(time_, std::move(handler)); }
  void cancel() { loop_.Cancel(); }

 private:
  SetLoop& loop_;
  SetClock::time_point time_;
};

class SessionTimerTest : public ::testing::Test {
 protected:
  struct Owner {
    explicit Owner(SetLoop& loop) : timer(loop) {}
    BasicSessionTimer<SetTimer> timer;
  };

  SessionTimerTest() {
    SetClock::time = {};
    owner_ = std::make_shared<Owner>(loop_);
    owner_->timer.OnExpiry(owner_, [this] {
      ++expired_;
      if (on_expired_) on_expired_();
    });
  }
  void Arm(int ms) { owner_->timer.Arm(SetClock::time_point(milliseconds(ms))); }

  SetLoop loop_;
  std::shared_ptr<Owner> owner_;
  int expired_ = 0;
  std::function<void()> on_expired_;
};

TEST_F(SessionTimerTest, ExpiresOnceAtItsDeadline) {
  Arm(100);
  EXPECT_TRUE(owner_->timer.is_armed());
  loop_.RunAt(99);
  EXPECT_EQ(expired_, 0);
  loop_.RunAt(100);
  EXPECT_EQ(expired_, 1);
  EXPECT_FALSE(owner_->timer.is_armed());
  loop_.RunAt(1000);
  EXPECT_EQ(expired_, 1);
}

TEST_F(SessionTimerTest, LaterDeadlineNeedsNoSecondWaitUntilTheFirstHasPassed) {
  Arm(100);
  for (int ms = 1; ms < 100; ++ms) {
    loop_.RunAt(ms);
    Arm(100 + ms);
  }
  EXPECT_EQ(loop_.waits, 1);
  loop_.RunAt(100);
  EXPECT_EQ(loop_.waits, 2);
  EXPECT_EQ(expired_, 0);
  loop_.RunAt(198);
  EXPECT_EQ(expired_, 0);
  loop_.RunAt(199);
  EXPECT_EQ(expired_, 1);
}

TEST_F(SessionTimerTest, SoonerDeadlineHolds) {
  Arm(100);
  Arm(50);
  loop_.RunAt(50);
  EXPECT_EQ(expired_, 1);
  loop_.RunAt(100);
  EXPECT_EQ(expired_, 1);
}

// The wait of a timer that was disarmed goes on; a deadline set meanwhile still holds.
TEST_F(SessionTimerTest, DisarmedTimerExpiresOnlyIfItIsArmedAnew) {
  Arm(100);
  owner_->timer.Disarm();
  loop_.RunAt(100);
  EXPECT_EQ(expired_, 0);
  Arm(200);
  owner_->timer.Disarm();
  Arm(300);
  loop_.RunAt(200);
  EXPECT_EQ(expired_, 0);
  loop_.RunAt(300);
  EXPECT_EQ(expired_, 1);
}

TEST_F(SessionTimerTest, CancelledTimerCanBeArmedAnew) {
  Arm(100);
  owner_->timer.Cancel();
  loop_.RunAt(100);
  EXPECT_EQ(expired_, 0);
  Arm(200);
  loop_.RunAt(200);
  EXPECT_EQ(expired_, 1);
}

// The deadline has passed, but the loop has not called the handler yet.
TEST_F(SessionTimerTest, DeadlineThatMovesAfterItsWaitHasEndedHolds) {
  Arm(100);
  loop_.PassTo(100);
  Arm(200);
  loop_.Run();
  EXPECT_EQ(expired_, 0);
  loop_.RunAt(200);
  EXPECT_EQ(expired_, 1);

  Arm(300);
  loop_.PassTo(300);
  owner_->timer.Cancel();
  loop_.Run();
  EXPECT_EQ(expired_, 1);
}

TEST_F(SessionTimerTest, NothingIsCalledAfterTheOwnersEnd) {
  Arm(100);
  owner_.reset();
  loop_.RunAt(100);
  EXPECT_EQ(expired_, 0);
}

TEST_F(SessionTimerTest, WhatExpiresMayArmItAnewOrEndItsOwner) {
  on_expired_ = [this] { Arm(200); };
  Arm(100);
  loop_.RunAt(100);
  on_expired_ = [this] { owner_.reset(); };
  loop_.RunAt(200);
  EXPECT_EQ(expired_, 2);
}

}  // namespace
}  // namespace diffserve
