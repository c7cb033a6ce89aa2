// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/crash_report.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/base/tensor.h"
#include "kernels/process/log.h"

namespace diffserve {
namespace {

using ::testing::KilledBySignal;

// QEMU, which runs these tests for another processor, adds a line of its own.
const std::string kLineEnd = "\n(qemu: [^\n]*\n)?$";

TEST(CrashReportDeathTest, FailedAllocationIsOneLine) {
  const auto ask_for_too_much = [] {
    InstallCrashReport("1.2.3", "abc");
    CrashWhenMemoryRunsOut();
    const Buffer buffer(size_t{1} << 60);
  };
  EXPECT_EXIT(ask_for_too_much(), KilledBySignal(SIGABRT),
              "^diffserve: crashed signal=6 version=1.2.3 commit=abc .*"
              "reason=\"out of memory\" backtrace=[^\n]*" +
                  kLineEnd);
}

TEST(CrashReportDeathTest, UncaughtExceptionIsOneLineWithItsTypeAndNotItsText) {
  const auto throw_on_a_thread = [] {
    InstallCrashReport("1.2.3", "abc");
    std::thread([] { throw std::runtime_error("a secret"); }).join();
  };
  EXPECT_EXIT(throw_on_a_thread(), KilledBySignal(SIGABRT),
              "^diffserve: crashed signal=6 version=1.2.3 commit=abc .*"
              "uncaught=St13runtime_error backtrace=[^\n]*" +
                  kLineEnd);
}

TEST(CrashReportDeathTest, LineIsAJsonObjectWhereTheLogIs) {
  const auto ask_for_too_much = [] {
    SetLogFormat(LogFormat::kJson);
    InstallCrashReport("1.2.3", "a\"b");
    CrashWhenMemoryRunsOut();
    const Buffer buffer(size_t{1} << 60);
  };
  EXPECT_EXIT(ask_for_too_much(), KilledBySignal(SIGABRT),
              "^\\{\"time\":\"2[^\"]*Z\",\"level\":\"ERROR\",\"event\":\"crashed\","
              "\"signal\":\"6\",\"version\":\"1.2.3\",\"commit\":\"a\\\\\"b\",.*"
              "\"reason\":\"out of memory\",\"backtrace\":\"[^\"\n]*\"}" +
                  kLineEnd);
}

}  // namespace
}  // namespace diffserve
