// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace diffserve {
namespace {

using ::testing::MatchesRegex;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

constexpr char kTime[] =
    "20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[012][0-9]:[0-5][0-9]:[0-5][0-9]."
    "[0-9][0-9][0-9]Z";

class LogLineTest : public ::testing::Test {
 protected:
  LogLineTest() { CaptureStderr(); }
  ~LogLineTest() override { SetLogFormat(LogFormat::kText); }
};

// A line without its time, which must be one.
std::string Untimed(std::string line, const std::string& before) {
  const size_t begin = before.size(), count = std::string(LogTimeNow().text).size();
  EXPECT_EQ(line.substr(0, begin), before);
  EXPECT_THAT(line.substr(begin, count), MatchesRegex(kTime));
  return line.erase(0, begin + count);
}

TEST_F(LogLineTest, TextHasTimeLevelEventAndFields) {
  Log(LogLevel::kInfo, "loaded", {{"name", "a b"}, {"count", "3"}, {"quote", "\"\\\n"}});
  EXPECT_EQ(Untimed(GetCapturedStderr(), ""),
            " INFO loaded name=\"a b\" count=3 quote=\"\\\"\\\\ \"\n");
}

TEST_F(LogLineTest, JsonIsOneObjectOfStringsPerLine) {
  SetLogFormat(LogFormat::kJson);
  Log(LogLevel::kWarning, "loaded", {{"name", "a b"}, {"text", "\"q\" \\ \t\n\x01 \xFF \u00E9"}});
  EXPECT_EQ(Untimed(GetCapturedStderr(), "{\"time\":\""),
            "\",\"level\":\"WARNING\",\"event\":\"loaded\",\"name\":\"a b\",\"text\":"
            "\"\\\"q\\\" \\\\ \\t\\n\u2401 \uFFFD \u00E9\"}\n");
}

TEST_F(LogLineTest, MessagesHaveNoMinimumLevel) {
  LogMessage(LogLevel::kInfo, "a message");
  SetLogFormat(LogFormat::kJson);
  LogMessage(LogLevel::kError, "a \"message\"");
  const std::string text = GetCapturedStderr(), plain = "diffserve: a message\n";
  EXPECT_EQ(text.substr(0, plain.size()), plain);
  EXPECT_EQ(Untimed(text.substr(plain.size()), "{\"time\":\""),
            "\",\"level\":\"ERROR\",\"event\":\"message\",\"message\":\"a \\\"message\\\"\"}\n");
}

TEST_F(LogLineTest, LinesOfModelsNameTheModel) {
  LogLineOfModel("m", "a line");
  SetLogFormat(LogFormat::kJson);
  LogLineOfModel("m", "{\"time\":\"T\",\"level\":\"INFO\",\"event\":\"x\"}");
  LogLineOfModel("m", "{\"time\":\"T\",\"cut");
  const std::string text = GetCapturedStderr();
  const std::string first =
      "a line model=m\n"
      "{\"time\":\"T\",\"level\":\"INFO\",\"event\":\"x\",\"model\":\"m\"}\n";
  EXPECT_EQ(text.substr(0, first.size()), first);
  EXPECT_EQ(Untimed(text.substr(first.size()), "{\"time\":\""),
            "\",\"level\":\"WARNING\",\"event\":\"message\",\"message\":\"{\\\"time\\\":"
            "\\\"T\\\",\\\"cut\",\"model\":\"m\"}\n");
}

}  // namespace
}  // namespace diffserve
