// SPDX-License-Identifier: Apache-2.0
#include "engine/stats_recorder.h"

#include <gtest/gtest.h>

#include <utility>

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

TEST(StatsRecorderTest, EventsHaveTheTimesOfTheirSequence) {
  StatsRecorder recorder;
  Request request;
  request.id = 1;
  request.arrival = At(100);
  recorder.OnAdd(request);
  StepPlan plan;
  plan.sequences.emplace_back().request = &request;
  plan.sequences.back().first_step = true;
  recorder.OnPlan(plan, At(107));
  const auto times_at = [&recorder](int seconds, FinishReason finish = FinishReason::kNone) {
    TokenEvent event;
    event.request = 1;
    event.tokens = {5};
    event.finish = finish;
    recorder.OnEvent(event, At(seconds));
    return std::pair(event.times.prompt_s, event.times.tokens_s);
  };
  EXPECT_EQ(times_at(110), std::pair(3.0, 0.0)) << "without the wait in the queue";
  EXPECT_EQ(times_at(112), std::pair(3.0, 2.0));
  EXPECT_EQ(times_at(115, FinishReason::kStop), std::pair(3.0, 5.0));
}

TEST(StatsRecorderTest, DraftModelHasACostOfItsOwn) {
  StatsRecorder recorder;
  for (int i = 0; i < 20; ++i) {
    const int tokens = 1 + i % 4, passes = 1 + i % 3, draft_tokens = passes * (1 + i % 2);
    const double draft_seconds = 2.0 * passes + 0.5 * draft_tokens;
    const TimePoint begin = At(1000 * i);
    recorder.OnWake(begin);
    recorder.OnStep({.step = static_cast<uint64_t>(i) + 1,
                     .num_tokens = tokens,
                     .num_sequences = 1,
                     .draft = {.passes = passes, .tokens = draft_tokens},
                     .draft_seconds = draft_seconds,
                     .begin = begin,
                     .planned = begin,
                     .executed = begin + std::chrono::milliseconds(static_cast<int>(
                                             1000 * (10 + 4 * tokens + draft_seconds))),
                     .committed = begin});
  }
  ASSERT_TRUE(recorder.step_cost().has_value());
  EXPECT_NEAR(recorder.step_cost()->overhead_tokens(), 10.0 / 4, 1e-6);
  ASSERT_TRUE(recorder.draft_cost().has_value());
  EXPECT_NEAR(recorder.draft_cost()->pass, 2.0 / 4, 1e-6);
  EXPECT_NEAR(recorder.draft_cost()->token, 0.5 / 4, 1e-6);
  for (uint64_t step = 21; step <= 20 + 1024; ++step) recorder.OnStep({.step = step});
  EXPECT_TRUE(recorder.draft_cost().has_value());
  recorder.OnStep({.step = 21 + 1024});
  EXPECT_FALSE(recorder.draft_cost().has_value()) << "so that it is measured again";
}

TEST(StatsRecorderTest, RowsCostMultiplesOfWhatATokenOfAStepAdds) {
  StatsRecorder recorder;
  for (int i = 0; i < 200; ++i) {
    const int tokens = i % 10 == 0 ? 100 : 1 + i % 2;
    recorder.OnWake(At(1000 * i));
    recorder.OnStep({.step = static_cast<uint64_t>(i) + 1,
                     .num_tokens = tokens,
                     .num_sequences = 1,
                     .begin = At(1000 * i),
                     .planned = At(1000 * i),
                     .executed = At(1000 * i + 50 + 2 * tokens),
                     .committed = At(1000 * i + 50 + 2 * tokens)});
    if (i == 0) {
      EXPECT_FALSE(recorder.row_costs().has_value());
    }
  }
  ASSERT_TRUE(recorder.row_costs().has_value());
  EXPECT_NEAR((*recorder.row_costs())[1], 52.0 / 2, 1);
  EXPECT_NEAR((*recorder.row_costs())[2], 54.0 / 2, 1);
}

}  // namespace
}  // namespace diffserve
