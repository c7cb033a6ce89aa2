// SPDX-License-Identifier: Apache-2.0
#include "engine/queue_state.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

constexpr double kStep = 0.1, kToken = 0.01;  // seconds

QueueState Queue(int running, int free_seats) {
  QueueState queue;
  queue.running = running;
  queue.free_seats = free_seats;
  queue.mean_generated_tokens = 20;
  queue.cost = StepCost{kStep, kToken};
  return queue;
}

TEST(StepCostMeterTest, FitsOverheadAndTokens) {
  StepCostMeter meter;
  meter.Take(4, kStep + 4 * kToken);
  EXPECT_FALSE(meter.cost()) << "steps of one size do not determine the slope";
  for (const int tokens : {1, 16, 7, 500, 1}) meter.Take(tokens, kStep + tokens * kToken);
  ASSERT_TRUE(meter.cost());
  EXPECT_NEAR(meter.cost()->overhead_seconds, kStep, 1e-9);
  EXPECT_NEAR(meter.cost()->token_seconds, kToken, 1e-9);
  EXPECT_NEAR(meter.cost()->overhead_tokens(), 10, 1e-6);
}

TEST(StepCostMeterTest, ForgetsOldStepsAndKeepsTheFitWhileSizesAreEqual) {
  StepCostMeter meter;
  for (int i = 0; i < 50; ++i) meter.Take(1 + i % 8, 1.0 + i % 8);
  for (int i = 0; i < 1000; ++i) meter.Take(1 + i % 8, kStep + (1 + i % 8) * kToken);
  ASSERT_TRUE(meter.cost());
  EXPECT_NEAR(meter.cost()->token_seconds, kToken, 1e-6);
  for (int i = 0; i < 1000; ++i) meter.Take(4, kStep + 4 * kToken);
  EXPECT_NEAR(meter.cost()->token_seconds, kToken, 1e-6);
}

TEST(QueueStateTest, KeepsAnEntryForEachClient) {
  QueueState queue;
  queue.Add(7, 1, 10);
  queue.Add(3, 1, 5);
  queue.Add(7, 2, 20);
  ASSERT_NE(queue.Find(7), nullptr);
  EXPECT_EQ(queue.Find(7)->requests, 3);
  EXPECT_EQ(queue.Find(7)->tokens, 30);
  EXPECT_EQ(queue.Find(4), nullptr);
  EXPECT_EQ(queue.Sum().requests, 4);
  EXPECT_EQ(queue.Sum().tokens, 35);
}

TEST(EstimatedWaitTest, IsZeroForAClientWithoutRequestsInTheQueue) {
  QueueState queue = Queue(4, 0);
  queue.Add(1, 500, 50000);
  EXPECT_EQ(EstimatedWait(queue, 2), 0);
  EXPECT_GT(EstimatedWait(queue, 1), 0);
}

TEST(EstimatedWaitTest, IsZeroBeforeStepsWereMeasured) {
  QueueState queue = Queue(4, 0);
  queue.Add(1, 500, 50000);
  queue.cost.reset();
  EXPECT_EQ(EstimatedWait(queue, 1), 0);
}

TEST(EstimatedWaitTest, WithFreeSeatsIsThePromptTime) {
  QueueState queue = Queue(0, 10);
  queue.Add(1, 5, 300);
  EXPECT_NEAR(EstimatedWait(queue, 1), 300 * kToken, 1e-9);
}

// Each request that must end first generates 20 tokens, in steps that 4 sequences share.
TEST(EstimatedWaitTest, WithoutFreeSeatsAddsTheTimeOfRequestsThatMustEndFirst) {
  QueueState queue = Queue(4, 2);
  queue.Add(1, 5, 300);
  EXPECT_NEAR(EstimatedWait(queue, 1), 300 * kToken + 3 * 20 * (kStep / 4 + kToken), 1e-9);
}

TEST(EstimatedWaitTest, CountsAtMostItsOwnNumberOfRequestsPerOtherClient) {
  QueueState queue = Queue(4, 0);
  queue.Add(1, 100, 1000);
  queue.Add(2, 2, 40);
  EXPECT_NEAR(EstimatedWait(queue, 2), (40 + 20) * kToken + 4 * 20 * (kStep / 4 + kToken), 1e-9);
}

}  // namespace
}  // namespace diffserve
