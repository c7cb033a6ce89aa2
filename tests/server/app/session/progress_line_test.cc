// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/progress_line.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/process/log.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

// Captures what `line` writes to a descriptor: the end of a pipe, or a terminal.
struct Ends {
  int write_end = -1, read_end = -1;
  // All output so far. A terminal delivers it in pieces with delay, so a mark is written after it
  // and read up to.
  std::string Read() const {
    static constexpr std::string_view kMark = "<end>";
    EXPECT_EQ(write(write_end, kMark.data(), kMark.size()), ssize_t{kMark.size()});
    std::string text;
    char bytes[4096];
    while (!text.ends_with(kMark)) {
      const ssize_t count = read(read_end, bytes, sizeof(bytes));
      if (count <= 0) return text + "<nothing more can be read>";
      text.append(bytes, static_cast<size_t>(count));
    }
    text.resize(text.size() - kMark.size());
    return text;
  }
  ~Ends() {
    close(write_end);
    close(read_end);
  }
};

Ends MakePipe() {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  return {ends[1], ends[0]};
}

Ends MakeTerminal() {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_TRUE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  return {open(ptsname(master), O_RDWR | O_NOCTTY), master};
}

TEST(ProgressLineTest, WithoutATerminalEachReportIsALine) {
  const Ends ends = MakePipe();
  {
    ProgressLine line(ProgressLine::Form::kPlain, ends.write_end);
    EXPECT_EQ(line.pace().first, std::chrono::seconds(2));
    EXPECT_EQ(line.pace().then, std::chrono::seconds(10));
    line.Tell("loading", 3 << 19, 5 << 20);
    line.report()("converting", 1 << 20, 2 << 20);
  }
  EXPECT_EQ(ends.Read(), "loading: 1.5 MiB of 5.0 MiB\nconverting: 1.0 MiB of 2.0 MiB\n");
}

TEST(ProgressLineTest, ServerReportsAreLogLines) {
  SetLogLevel(LogLevel::kInfo);
  const Ends ends = MakePipe();
  ::testing::internal::CaptureStderr();
  ProgressLine(ProgressLine::Form::kLog, ends.write_end).Tell("loading", 1000, 2000);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(" INFO load_progress doing=loading done_bytes=1000 all_bytes=2000\n"));
  EXPECT_EQ(ends.Read(), "");
}

TEST(ProgressLineTest, TerminalLineIsRewrittenAndRemoved) {
  for (const auto form : {ProgressLine::Form::kPlain, ProgressLine::Form::kLog}) {
    const Ends ends = MakeTerminal();
    {
      ProgressLine line(form, ends.write_end);
      EXPECT_LT(line.pace().then, std::chrono::seconds(1));
      line.Tell("loading", 1 << 20, 5 << 20);
      line.Tell("loading", 2 << 20, 5 << 20);
    }
    EXPECT_EQ(ends.Read(),
              "\r\x1b[Kloading: 1.0 MiB of 5.0 MiB\r\x1b[Kloading: 2.0 MiB of 5.0 MiB\r\x1b[K");
  }
}

TEST(ProgressLineTest, WithoutAReportNothingIsWritten) {
  const Ends ends = MakeTerminal();
  {
    const ProgressLine line(ProgressLine::Form::kPlain, ends.write_end);
  }
  EXPECT_EQ(ends.Read(), "");
}

}  // namespace
}  // namespace diffserve
