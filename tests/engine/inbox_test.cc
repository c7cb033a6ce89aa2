// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/engine_requests.h"

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
  // Steps take 100 ms plus 10 ms per token and run 4 sequences; requests generate 20 tokens.
  static QueueState Queue() {
    QueueState queue;
    queue.running = 4;
    queue.mean_generated_tokens = 20;
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
  EXPECT_TRUE(Submit(1, milliseconds(1)).ok()) << "nothing waits";
  // One request is before it: 10 prompt tokens, and 20 to generate before a sequence can start.
  const double wait = 10 * 0.01 + 20 * (0.1 / 4 + 0.01);
  const Status refused = Submit(1, milliseconds(static_cast<int>(1000 * wait) - 10));
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "the request would wait about 0.8 s for its turn and may wait 0.8 s; retry later");
  EXPECT_EQ(refused.retry_after_s(), 1);
  EXPECT_EQ(Refused(RefusalReason::kQueueWait), 1u);
  EXPECT_TRUE(Submit(1, milliseconds(static_cast<int>(1000 * wait) + 10)).ok());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Submit(1, milliseconds(0)).retry_after_s(), 8);
  EXPECT_TRUE(Submit(2, milliseconds(1)).ok()) << "another client's turn comes next";
}

TEST_F(InboxTest, QueueCanBeCheckedBeforeTheTextWork) {
  inbox_.SetQueue(Queue());
  EXPECT_TRUE(inbox_.CheckQueue(1, now_).ok());
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(inbox_.CheckQueue(1, now_).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(inbox_.CheckQueue(1, TimePoint::max()).ok());
  EXPECT_EQ(Refused(RefusalReason::kQueueWait), 1u);
  inbox_.Drain(TimePoint());
  EXPECT_EQ(inbox_.CheckQueue(1, TimePoint::max()).code(), StatusCode::kUnavailable);
}

TEST_F(InboxTest, AResetOfThePrefixCacheWakesTheEngineOnce) {
  std::thread asks([this] { inbox_.ResetPrefixCache(); });
  EXPECT_TRUE(inbox_.Take(/*wait=*/true).reset_prefix_cache);
  asks.join();
  ASSERT_TRUE(Submit(1).ok());
  const Inbox::Incoming next = inbox_.Take(/*wait=*/true);
  EXPECT_FALSE(next.reset_prefix_cache);
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
