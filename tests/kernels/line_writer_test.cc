// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/line_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/process/log.h"
#include "tests/testing/kernels/full_pipe.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using std::chrono::milliseconds;
using testing::FullPipe;

std::string Gap(uint64_t lines) { return "gap " + std::to_string(lines) + "\n"; }

TEST(LineWriterTest, LinesReachAFileWholeAndInOrder) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "lines";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  std::string expected;
  {
    LineWriter writer({.descriptor = file});
    for (int i = 0; i < 1000; ++i) {
      writer.Push("line " + std::to_string(i) + "\n");
      expected += "line " + std::to_string(i) + "\n";
    }
    EXPECT_TRUE(writer.Flush(std::chrono::minutes(1)));
    EXPECT_EQ(FileBytes(path), expected);
    EXPECT_EQ(writer.dropped(), 0u);
  }
  close(file);
}

TEST(LineWriterTest, LinesOfSeveralThreadsStayWhole) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "lines";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  {
    LineWriter writer({.descriptor = file});
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&writer] {
        for (int line = 0; line < 500; ++line) writer.Push("0123456789\n");
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(writer.Flush(std::chrono::minutes(1)));
  }
  close(file);
  std::string expected;
  for (int line = 0; line < 2000; ++line) expected += "0123456789\n";
  EXPECT_EQ(FileBytes(path), expected);
}

// If Push waited for the reader, it would hang here.
TEST(LineWriterTest, StalledReaderBlocksNoCallerAndGetsACountOfLostLines) {
  FullPipe pipe;
  LineWriter writer({.descriptor = pipe.input(), .max_bytes = 100, .gap_line = Gap});
  for (int i = 0; i < 25; ++i) writer.Push("123456789\n");  // ten of them fit
  EXPECT_EQ(writer.dropped(), 15u);
  EXPECT_EQ(writer.pending(), 10u);
  EXPECT_FALSE(writer.Flush(milliseconds(1)));
  std::string ten;
  for (int i = 0; i < 10; ++i) ten += "123456789\n";
  EXPECT_EQ(pipe.ReadUntil(ten), ten);
  EXPECT_TRUE(writer.Flush(std::chrono::minutes(1)));
  writer.Push("next\n");
  EXPECT_EQ(pipe.ReadUntil("next\n"), "gap 15\nnext\n");
}

// On a busy machine the writer's thread may get no time before the wait at the end is over. Here it
// gets none: there is no wait.
TEST(LineWriterTest, LastLineIsWrittenHoweverLateTheThreadRuns) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "lines";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    for (const int descriptor : {file, ends[1]}) {
      LineWriter writer({.descriptor = descriptor, .last_wait = milliseconds(0)});
      writer.Push("why it ends\n");
      writer.Push("last\n");
    }
    expected += "why it ends\nlast\n";
  }
  close(ends[1]);
  EXPECT_EQ(FileBytes(path), expected);
  std::string piped(expected.size() + 1, ' ');
  piped.resize(static_cast<size_t>(read(ends[0], piped.data(), piped.size())));
  EXPECT_EQ(piped, expected);
  close(ends[0]);
  close(file);
}

// Whether the writer's destructor returns although nothing is read. If it does not, `let_go` ends
// the wait.
bool Ends(std::unique_ptr<LineWriter> writer, const std::function<void()>& let_go) {
  std::future<void> end = std::async(std::launch::async, [&] { writer.reset(); });
  const bool ends = end.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  if (!ends) let_go();
  return ends;
}

TEST(LineWriterTest, DestructorDoesNotWaitForAStalledReader) {
  FullPipe pipe;
  auto writer = std::make_unique<LineWriter>(
      LineWriter::Options{.descriptor = pipe.input(), .last_wait = milliseconds(1)});
  writer->Push("left\n");
  EXPECT_TRUE(Ends(std::move(writer), [&] { pipe.ReadUntil("left\n"); }));
}

TEST(LineWriterTest, DestructorDoesNotWaitForASocketWithoutReader) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  auto writer = std::make_unique<LineWriter>(LineWriter::Options{
      .descriptor = ends[0], .max_bytes = size_t{64} << 20, .last_wait = milliseconds(1)});
  for (int i = 0; i < 64; ++i) writer->Push(std::string(size_t{1} << 18, 'x') + "\n");
  EXPECT_GT(writer->pending(), 0u);
  EXPECT_TRUE(Ends(std::move(writer), [&] { shutdown(ends[1], SHUT_RDWR); }));
  close(ends[0]);
  close(ends[1]);
}

TEST(LineWriterTest, LinesThatCannotBeWrittenAreCounted) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  {
    LineWriter writer({.descriptor = full});
    writer.Push("one\n");
    writer.Push("two\n");
    EXPECT_TRUE(writer.Flush(std::chrono::minutes(1)));
    EXPECT_EQ(writer.dropped(), 2u);
  }
  close(full);
}

TEST(LineWriterTest, PipeWithoutReaderRaisesNoSignal) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  {
    LineWriter writer({.descriptor = ends[1]});
    writer.Push("one\n");
    EXPECT_TRUE(writer.Flush(std::chrono::minutes(1)));
    EXPECT_EQ(writer.dropped(), 1u);
  }
  close(ends[1]);
}

TEST(LogTest, ThreadWritesTheLinesAndCountsLostOnes) {
  FullPipe pipe;
  const uint64_t before = DroppedLogLines();
  {
    const LogThread log(pipe.input());
    const std::string long_value(1000, 'x');
    for (int i = 0; i < 2000; ++i)
      Log(LogLevel::kInfo, "filling", {{"value", long_value}});  // 2 MB, of which one is kept
    EXPECT_FALSE(FlushLog(milliseconds(1)));
    const uint64_t lost = DroppedLogLines() - before;
    EXPECT_GT(lost, 500u);
    EXPECT_LT(lost, 1500u);
    std::thread reader([&] {
      const std::string reported = "WARNING log_lines_dropped lines=" + std::to_string(lost) + "\n";
      EXPECT_THAT(pipe.ReadUntil("last\n"), ::testing::HasSubstr(reported));
    });
    EXPECT_TRUE(FlushLog(std::chrono::minutes(1)));
    LogMessage(LogLevel::kInfo, "last");
    EXPECT_TRUE(FlushLog(std::chrono::minutes(1)));
    reader.join();
  }
}

}  // namespace
}  // namespace diffserve
