// SPDX-License-Identifier: Apache-2.0
// JSON files of checkpoints in ConfigReader. Text that is not one JSON object within the limits
// gives a one-line error.
#include "models/config_reader.h"

#include <gtest/gtest.h>

#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {
namespace {

std::string ParseError(std::string_view text) {
  const Result<ConfigReader> reader = ConfigReader::Parse(text, "f.json");
  return reader.ok() ? "accepted" : reader.status().message();
}

TEST(ConfigReaderTest, BadJsonIsRefusedByOneLine) {
  EXPECT_EQ(ParseError(""), "f.json: not valid JSON at byte 1");
  EXPECT_EQ(ParseError("{\"a\": 1,}"), "f.json: not valid JSON at byte 9");
  EXPECT_EQ(ParseError("{} x"), "f.json: not valid JSON at byte 4");
  EXPECT_EQ(ParseError("{\"a\": NaN}"), "f.json: not valid JSON at byte 7");
  EXPECT_EQ(ParseError("{\"a\": 1e999}"), "f.json: not valid JSON");
  EXPECT_EQ(ParseError("{\"a\": \"\xff\"}"), "f.json: not valid JSON at byte 8");
  EXPECT_EQ(ParseError("[1]"), "f.json: is [1]; allowed: one JSON object");
  EXPECT_EQ(ParseError("{\"a\": {\"b\": 1, \"b\": 2}}"),
            "f.json: the key \"b\" occurs twice in one object");
  EXPECT_EQ(ParseError("{\"a\": {\"b\": 1}, \"c\": {\"b\": 2}}"), "accepted");
  EXPECT_EQ(ParseError("{\"\\u0061\": 1, \"a\": 2}"),
            "f.json: the key \"a\" occurs twice in one object");
}

TEST(ConfigReaderTest, DepthIsLimitedWhileParsing) {
  const auto nested = [](size_t depth) {
    return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(ParseError(nested(ConfigReader::kMaxDepth)), "accepted");
  EXPECT_EQ(ParseError(nested(ConfigReader::kMaxDepth + 1)),
            "f.json: nested deeper than 32 levels");
  EXPECT_EQ(ParseError(nested(1'000'000)), "f.json: nested deeper than 32 levels");
}

TEST(ConfigReaderTest, FilesThatAreMissingEmptyOrTooLargeAreRefused) {
  TemporaryDirectory directory;
  const std::string path = (directory.path() / "config.json").string();
  EXPECT_EQ(ConfigReader::Open(path).status().message(), path + ": no such file");
  WriteFile(path, "");
  EXPECT_EQ(ConfigReader::Open(path).status().message(), path + ": not valid JSON at byte 1");
  WriteFile(path, "{" + std::string(100, ' ') + "}");
  EXPECT_EQ(ConfigReader::Open(path, 101).status().message(),
            path + ": has 102 bytes; allowed: at most 101");
  EXPECT_TRUE(ConfigReader::Open(path, 102).ok());
}

TEST(ConfigReaderTest, FirstProblemIsKeptAndNestedOnesCount) {
  Result<ConfigReader> reader = ConfigReader::Parse("{\"a\": {\"b\": \"line\\nbreak\"}, \"c\": 1}",
                                                    "f.json");
  ASSERT_TRUE(reader.ok());
  std::optional<ConfigReader> nested = reader->Object("a");
  ASSERT_TRUE(nested);
  nested->Int("b", std::nullopt, 0, 1);
  reader->Bool("c", std::nullopt);
  EXPECT_EQ(reader->status().message(),
            "f.json: a.b is \"line\\nbreak\"; allowed: an integer from 0 to 1");
}

TEST(ConfigReaderTest, KeysWithNullAreNotListed) {
  Result<ConfigReader> reader = ConfigReader::Parse("{\"b\": 1, \"a\": {\"c\": 2}, \"d\": null}",
                                                    "f.json");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->Keys(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(reader->Object("a")->Keys(), std::vector<std::string>{"c"});
}

}  // namespace
}  // namespace diffserve
