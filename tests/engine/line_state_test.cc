#include "engine/line_state.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

constexpr double kStep = 0.1, kToken = 0.01;  // seconds

LineState Line(int running, int free_seats) {
  LineState line;
  line.running = running;
  line.free_seats = free_seats;
  line.mean_generated_tokens = 20;
  line.cost = StepCost{kStep, kToken};
  return line;
}

TEST(StepCostMeterTest, FitsOverheadAndTokens) {
  StepCostMeter meter;
  meter.Take(4, kStep + 4 * kToken);
  EXPECT_FALSE(meter.cost()) << "one size tells no slope";
  for (const int tokens : {1, 16, 7, 500, 1}) meter.Take(tokens, kStep + tokens * kToken);
  ASSERT_TRUE(meter.cost());
  EXPECT_NEAR(meter.cost()->overhead_seconds, kStep, 1e-9);
  EXPECT_NEAR(meter.cost()->token_seconds, kToken, 1e-9);
  EXPECT_NEAR(meter.cost()->overhead_tokens(), 10, 1e-6);
}

TEST(StepCostMeterTest, ForgetsStepsOfLongAgoAndKeepsTheFitWhileSizesAreEqual) {
  StepCostMeter meter;
  for (int i = 0; i < 50; ++i) meter.Take(1 + i % 8, 1.0 + i % 8);
  for (int i = 0; i < 1000; ++i) meter.Take(1 + i % 8, kStep + (1 + i % 8) * kToken);
  ASSERT_TRUE(meter.cost());
  EXPECT_NEAR(meter.cost()->token_seconds, kToken, 1e-6);
  for (int i = 0; i < 1000; ++i) meter.Take(4, kStep + 4 * kToken);
  EXPECT_NEAR(meter.cost()->token_seconds, kToken, 1e-6);
}

TEST(LineStateTest, KeepsAnEntryForEachClient) {
  LineState line;
  line.Add(7, 1, 10);
  line.Add(3, 1, 5);
  line.Add(7, 2, 20);
  ASSERT_NE(line.Find(7), nullptr);
  EXPECT_EQ(line.Find(7)->requests, 3);
  EXPECT_EQ(line.Find(7)->tokens, 30);
  EXPECT_EQ(line.Find(4), nullptr);
  EXPECT_EQ(line.Sum().requests, 4);
  EXPECT_EQ(line.Sum().tokens, 35);
}

TEST(EstimatedWaitTest, IsNothingForAClientThatHasNothingInTheLine) {
  LineState line = Line(4, 0);
  line.Add(1, 500, 50000);
  EXPECT_EQ(EstimatedWait(line, 2), 0);
  EXPECT_GT(EstimatedWait(line, 1), 0);
}

TEST(EstimatedWaitTest, IsNothingBeforeStepsWereMeasured) {
  LineState line = Line(4, 0);
  line.Add(1, 500, 50000);
  line.cost.reset();
  EXPECT_EQ(EstimatedWait(line, 1), 0);
}

TEST(EstimatedWaitTest, WithFreeSeatsIsTheTimeOfThePrompts) {
  LineState line = Line(0, 10);
  line.Add(1, 5, 300);
  EXPECT_NEAR(EstimatedWait(line, 1), 300 * kToken, 1e-9);
}

// Each that must end first generates 20 tokens, in steps that 4 sequences share.
TEST(EstimatedWaitTest, WithoutSeatsIsAlsoTheTimeOfWhatMustEndFirst) {
  LineState line = Line(4, 2);
  line.Add(1, 5, 300);
  EXPECT_NEAR(EstimatedWait(line, 1), 300 * kToken + 3 * 20 * (kStep / 4 + kToken), 1e-9);
}

TEST(EstimatedWaitTest, CountsOfOtherClientsAsManyAsAreOfItsOwn) {
  LineState line = Line(4, 0);
  line.Add(1, 100, 1000);
  line.Add(2, 2, 40);
  EXPECT_NEAR(EstimatedWait(line, 2), (40 + 20) * kToken + 4 * 20 * (kStep / 4 + kToken), 1e-9);
}

}  // namespace
}  // namespace diffserve
