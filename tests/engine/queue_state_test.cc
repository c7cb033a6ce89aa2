// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/queue_state.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

constexpr double kStep = 0.1, kToken = 0.01;  // seconds

// The running sequences end by themselves, after 20 tokens on average.
QueueState Queue(int running, int free_seats) {
  QueueState queue;
  queue.seats = SeatForecast(std::vector<int>(static_cast<size_t>(running), 10000), free_seats,
                             {.max_tokens = 10000, .stop_chance = 1.0 / 20});
  queue.cost = StepCost{kStep, kToken};
  return queue;
}

void Add(QueueState& queue, const ClientShare& share) { queue.Of(share.client) = share; }

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

TEST(StepCostTest, TokensOfAStepFitIntoATime) {
  const StepCost cost = {kStep, kToken};
  EXPECT_EQ(cost.TokensWithin(kStep + 20.5 * kToken, 100), 20);
  EXPECT_EQ(cost.TokensWithin(kStep / 2, 100), 0) << "the overhead alone takes longer";
  EXPECT_EQ(cost.TokensWithin(1e30, 100), 100);
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

TEST(StepCostMeterTest, StepsOfEqualSizeSetTheLevel) {
  StepCostMeter meter;
  for (int i = 0; i < 50; ++i) meter.Take(1 + i % 8, kStep + (1 + i % 8) * kToken);
  const auto seconds_of_4 = [&] {
    return meter.cost()->overhead_seconds + 4 * meter.cost()->token_seconds;
  };
  for (const double seconds : {5 * kStep, kToken}) {
    for (int i = 0; i < 10000; ++i) meter.Take(4, seconds);
    EXPECT_NEAR(seconds_of_4(), seconds, 1e-6);
    EXPECT_GE(meter.cost()->overhead_seconds, 0);
  }
}

TEST(QueueStateTest, KeepsAnEntryForEachClient) {
  QueueState queue;
  queue.Of(7).requests = 3;
  queue.Of(3) = {.client = 3, .running = 4, .requests = 1, .tokens = 5};
  queue.Of(7).announced = 2;
  EXPECT_EQ(queue.Find(7).requests, 3);
  EXPECT_EQ(queue.Find(7).ahead(), 5);
  EXPECT_EQ(queue.Find(4).ahead(), 0);
  EXPECT_EQ(queue.Sum().running, 4);
  EXPECT_EQ(queue.Sum().requests, 4);
  EXPECT_EQ(queue.Sum().tokens, 5);
  EXPECT_EQ(queue.Sum().announced, 2);
}

TEST(EstimatedWaitTest, IsZeroForAClientWithNothingInTheEngine) {
  QueueState queue = Queue(4, 0);
  Add(queue, {.client = 1, .running = 4, .requests = 500, .tokens = 50000});
  EXPECT_EQ(EstimatedWait(queue, 2), 0);
  EXPECT_GT(EstimatedWait(queue, 1), 0);
}

TEST(EstimatedWaitTest, IsZeroBeforeStepsWereMeasured) {
  QueueState queue = Queue(4, 0);
  Add(queue, {.client = 1, .running = 4, .requests = 500, .tokens = 50000});
  queue.cost.reset();
  EXPECT_EQ(EstimatedWait(queue, 1), 0);
}

TEST(EstimatedWaitTest, WithFreeSeatsIsThePromptTime) {
  QueueState queue = Queue(0, 10);
  Add(queue, {.client = 1, .requests = 5, .tokens = 300});
  EXPECT_NEAR(EstimatedWait(queue, 1), 300 * kToken, 1e-9);
}

// One of 4 sequences ends every 5 steps. Each step computes one token for each seat.
TEST(EstimatedWaitTest, WithoutFreeSeatsAddsTheTimeUntilEnoughSequencesEnd) {
  for (const int free_seats : {0, 2}) {
    QueueState queue = Queue(4 - free_seats, free_seats);
    Add(queue, {.client = 1, .running = 4 - free_seats, .requests = 3, .tokens = 300});
    queue.prompt_tokens_left = 50;
    const int ends = 4 - free_seats;
    EXPECT_NEAR(EstimatedWait(queue, 1), 350 * kToken + ends * 5 * (kStep + 4 * kToken), 1e-9);
  }
}

TEST(EstimatedWaitTest, CountsRequestsThatAreStillInTheirTextWork) {
  QueueState queue = Queue(4, 0);
  Add(queue, {.client = 1, .running = 4, .requests = 1, .tokens = 100, .announced = 2});
  EXPECT_NEAR(EstimatedWait(queue, 1), 100 * kToken + 4 * 5 * (kStep + 4 * kToken), 1e-9);
}

TEST(EstimatedWaitTest, CountsAtMostItsOwnNumberOfRequestsPerOtherClient) {
  QueueState queue = Queue(4, 0);
  Add(queue, {.client = 1, .running = 2, .requests = 100, .tokens = 1000});
  Add(queue, {.client = 2, .running = 2, .requests = 2, .tokens = 40});
  EXPECT_NEAR(EstimatedWait(queue, 2), (40 + 20) * kToken + 5 * 5 * (kStep + 4 * kToken), 1e-9);
}

TEST(EstimatedWaitTest, ClientBelowItsPartOfTheSeatsGetsOneFromAnother) {
  QueueState queue = Queue(4, 0);
  Add(queue, {.client = 1, .running = 4, .requests = 100, .tokens = 1000});
  Add(queue, {.client = 2, .requests = 1, .tokens = 40});
  EXPECT_NEAR(EstimatedWait(queue, 2), (40 + 10) * kToken, 1e-9);
  queue.Of(2).requests = 2;
  EXPECT_GT(EstimatedWait(queue, 2), 5 * kStep) << "its next one would be the third of 4";
}

}  // namespace
}  // namespace diffserve
