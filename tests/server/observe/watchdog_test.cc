// SPDX-License-Identifier: Apache-2.0
#include "server/observe/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "tests/testing/kernels/eventually.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

TEST(WatchdogTest, StalledStepIsLoggedOnceWithEachThreadsActivity) {
  std::atomic<double> seconds_since_progress = 1;
  std::atomic<int> looks = 0;
  const auto snapshot = [&] {
    EngineStats stats;
    stats.seconds_since_progress = seconds_since_progress;
    stats.steps = 7;
    ++looks;
    return stats;
  };
  // A look has ended when the next one begins.
  const auto looked = [&] {
    return testing::Eventually([&, seen = looks.load()] { return looks >= seen + 3; });
  };
  const Health health({});
  const NamedThread named("tester", "the watchdog");
  SetLogLevel(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  {
    const Watchdog watchdog(health, snapshot, {.stall_timeout_s = 0.5});
    EXPECT_TRUE(looked());
    seconds_since_progress = 0;
    EXPECT_TRUE(looked());
  }
  SetLogLevel(LogLevel::kError);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t stalled = log.find(" engine_stalled seconds=1 steps_done=7 ");
  EXPECT_NE(stalled, log.npos) << log;
  EXPECT_EQ(log.find("engine_stalled", stalled + 2), log.npos) << log;
  EXPECT_THAT(log, HasSubstr(" thread name=tester activity=\"the watchdog\" "));
  EXPECT_THAT(log, HasSubstr(" thread name=watchdog "));
  EXPECT_THAT(log, HasSubstr(" engine_resumed step=7\n"));
}

}  // namespace
}  // namespace diffserve
