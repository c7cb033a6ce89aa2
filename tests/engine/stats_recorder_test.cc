#include "engine/stats_recorder.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

StatsRecorder::TimePoint At(int seconds) {
  return StatsRecorder::TimePoint(std::chrono::seconds(seconds));
}

StepPlan PlanOf(uint64_t step) {
  StepPlan plan;
  plan.step = step;
  plan.sequences.resize(1);
  plan.sequences[0].num_planned = 3;
  return plan;
}

TEST(StatsRecorderTest, AStepLaunchedBehindAnotherIsExecutedFromWhenThatOneWas) {
  StatsRecorder recorder;
  recorder.OnStep(
      PlanOf(1), {.begin = At(100), .planned = At(101), .executed = At(110), .committed = At(111)});
  recorder.OnStep(
      PlanOf(2), {.begin = At(102), .planned = At(104), .executed = At(118), .committed = At(119)});
  recorder.OnStep(
      PlanOf(3), {.begin = At(130), .planned = At(131), .executed = At(135), .committed = At(136)});
  const EngineStats& stats = recorder.stats();
  EXPECT_EQ(stats.execute_seconds.sum, 9 + 8 + 4)
      << "no second is counted for two steps, and none in which nothing ran";
  EXPECT_EQ(stats.plan_seconds.sum, 1 + 2 + 1);
  EXPECT_EQ(stats.commit_seconds.sum, 3);
  EXPECT_EQ(stats.steps, 3u);
  EXPECT_EQ(stats.step_rows.sum, 9);
}

}  // namespace
}  // namespace diffserve
