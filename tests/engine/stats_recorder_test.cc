// SPDX-License-Identifier: Apache-2.0
#include "engine/stats_recorder.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

TimePoint At(int seconds) { return TimePoint(std::chrono::seconds(seconds)); }

TEST(StatsRecorderTest, ExecutionTimeBeginsWhenTheEarlierStepEnds) {
  StatsRecorder recorder;
  recorder.OnStep({.step = 1,
                   .num_tokens = 3,
                   .num_sequences = 1,
                   .begin = At(100),
                   .planned = At(101),
                   .executed = At(110),
                   .committed = At(111)});
  recorder.OnStep({.step = 2,
                   .num_tokens = 3,
                   .num_sequences = 1,
                   .begin = At(102),
                   .planned = At(104),
                   .executed = At(118),
                   .committed = At(119)});
  recorder.OnStep({.step = 3,
                   .num_tokens = 3,
                   .num_sequences = 1,
                   .begin = At(130),
                   .planned = At(131),
                   .executed = At(135),
                   .committed = At(136)});
  const EngineStats& stats = recorder.stats();
  EXPECT_EQ(stats.execute_seconds.sum, 9 + 8 + 4)
      << "no time is counted for two steps, nor while nothing ran";
  EXPECT_EQ(stats.plan_seconds.sum, 1 + 2 + 1);
  EXPECT_EQ(stats.commit_seconds.sum, 3);
  EXPECT_EQ(stats.steps, 3u);
  EXPECT_EQ(stats.step_tokens.sum, 9);
}

}  // namespace
}  // namespace diffserve
