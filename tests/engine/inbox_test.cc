// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/engine/engine_requests.h"

namespace diffserve {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using testing::MakeRequest;
using testing::SmallEngine;

class InboxTest : public ::testing::Test {
 protected:
  InboxTest() : inbox_(Options(), [this] { return now_; }) {}

  static EngineOptions Options() {
    EngineOptions options = SmallEngine();
    options.max_waiting_requests = 16;
    return options;
  }
  // Steps take 100 ms plus 10 ms per token. They run 4 sequences of client 1, which generate 20
  // tokens on average.
  static QueueState Queue() {
    QueueState queue;
    queue.clients = {{.client = 1, .running = 4}};
    queue.seats = SeatForecast({1000, 1000, 1000, 1000}, 0,
                               {.max_tokens = 1000, .stop_chance = 1.0 / 20});
    queue.cost = StepCost{0.1, 0.01};
    return queue;
  }
  Status Submit(uint64_t client, milliseconds may_wait = milliseconds(100000)) {
    Request request = MakeRequest(++last_id_, 10, 5);
    request.client = client;
    request.start_by = now_ + may_wait;
    return inbox_.Submit(std::move(request));
  }
  uint64_t Refused(RefusalReason reason) {
    EngineStats stats;
    inbox_.Describe(stats);
    return stats.refused[static_cast<size_t>(reason)];
  }

  TimePoint now_ = TimePoint(milliseconds(5000));
  Inbox inbox_;
  RequestId last_id_ = 0;
};

TEST_F(InboxTest, OneClientLeavesAnEighthOfTheQueueToOthers) {
  for (int i = 0; i < 14; ++i) ASSERT_TRUE(Submit(1).ok()) << i;
  EXPECT_EQ(Options().MaxWaitingRequestsPerClient(), 14);
  const Status refused = Submit(1);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("14 requests wait already, 14 of this client"));
  EXPECT_EQ(Refused(RefusalReason::kQueueFull), 1u);
  EXPECT_TRUE(Submit(2).ok());
}

TEST_F(InboxTest, RequestThatCannotStartInTimeIsRefusedWithARetryTime) {
  inbox_.SetQueue(Queue());
  ASSERT_TRUE(Submit(1).ok());
  // One request is before it: 10 prompt tokens, and 2 sequences must end, one every 5 steps.
  const double wait = 10 * 0.01 + 2 * 5 * (0.1 + 4 * 0.01);
  const Status refused = Submit(1, milliseconds(static_cast<int>(1000 * wait) - 10));
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "the request would wait about 1.5 s for its turn and may wait 1.5 s; retry later");
  EXPECT_EQ(refused.retry_after_s(), 1);
  EXPECT_EQ(Refused(RefusalReason::kQueueWait), 1u);
  EXPECT_TRUE(Submit(1, milliseconds(static_cast<int>(1000 * wait) + 10)).ok());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Submit(1, milliseconds(0)).retry_after_s(), 9);
  EXPECT_TRUE(Submit(2, milliseconds(1)).ok()) << "another client's turn comes next";
}

TEST_F(InboxTest, AnnouncedRequestsKeepTheirPlaceUntilTheyAreSubmitted) {
  inbox_.SetQueue(Queue());
  const double step = 0.1 + 4 * 0.01;
  const auto may_wait = [&](double seconds) { return now_ + milliseconds(int(1000 * seconds)); };
  EXPECT_EQ(inbox_.Announce(1, may_wait(4.9 * step)).status().code(),
            StatusCode::kResourceExhausted)
      << "no seat is free";
  EXPECT_EQ(Refused(RefusalReason::kQueueWait), 1u);
  auto first = inbox_.Announce(1, may_wait(5.1 * step));
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(inbox_.Announce(1, may_wait(9.9 * step)).ok()) << "one is before it";
  inbox_.SetQueue(Queue());
  EXPECT_FALSE(inbox_.Announce(1, may_wait(9.9 * step)).ok()) << "the engine knows it not yet";
  EXPECT_TRUE(inbox_.Announce(1, may_wait(10.1 * step)).ok());
  Request request = MakeRequest(1, 10, 5);
  request.client = 1;
  request.start_by = may_wait(5.1 * step);
  request.place = std::move(first).value();
  EXPECT_TRUE(inbox_.Submit(std::move(request)).ok()) << "it is not behind itself";
  EXPECT_FALSE(inbox_.Announce(1, may_wait(9.9 * step)).ok()) << "it waits";
}

TEST_F(InboxTest, AnnouncedRequestsCountAgainstTheLimitButDoNotWaitYet) {
  std::vector<std::shared_ptr<QueuePlace>> places;
  for (int i = 0; i < 14; ++i) places.push_back(inbox_.Announce(1, TimePoint::max()).value());
  EXPECT_THAT(inbox_.Announce(1, TimePoint::max()).status().message(),
              HasSubstr("14 requests wait already, 14 of this client"));
  EngineStats stats;
  inbox_.Describe(stats);
  EXPECT_EQ(stats.waiting, 0);
  places.pop_back();
  EXPECT_TRUE(Submit(1).ok());
  EXPECT_FALSE(Submit(1).ok());
  inbox_.Finish(last_id_ - 1);
  inbox_.Drain(TimePoint());
  EXPECT_EQ(inbox_.Announce(1, TimePoint::max()).status().code(), StatusCode::kUnavailable);
}

TEST_F(InboxTest, PrefixCacheResetWakesTheEngineOnce) {
  std::thread asks([this] { inbox_.ResetPrefixCache({.second_tier = true}); });
  EXPECT_TRUE(inbox_.Take(/*wait=*/true).cache_reset.second_tier);
  asks.join();
  ASSERT_TRUE(Submit(1).ok());
  const Inbox::Incoming next = inbox_.Take(/*wait=*/true);
  EXPECT_FALSE(next.cache_reset.any());
  EXPECT_EQ(next.requests.size(), 1u);
}

TEST_F(InboxTest, OverdueRequestIsRefusedWithItsWait) {
  Request request = MakeRequest(1, 10, 5);
  request.arrival = now_ - milliseconds(2500);
  request.start_by = now_ - milliseconds(500);
  const Status status = inbox_.RefuseOverdue(request, now_);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "the request waited 2.5 s for its turn and might wait 2.0 s; retry later");
  EXPECT_EQ(Refused(RefusalReason::kQueueWait), 1u);
}

}  // namespace
}  // namespace diffserve
