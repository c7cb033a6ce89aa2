// SPDX-License-Identifier: Apache-2.0
// JSON recognised a byte at a time, against the JSON library.
#include "server/serving/tools/json_scanner.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace diffserve {
namespace {

TEST(JsonScannerTest, AcceptsExactlyValidJson) {
  for (const char* text :
       {R"({})", R"([])", R"("")", "0", "-0.5e+10", "true", "false", "null", " [1, 2 ] ",
        R"({"a":{"b":[1,{"c":null}]},"d":"x"})", R"("\"\\\/\b\f\n\r\té")",
        "\"\xC3\xA9\xE2\x82\xAC\"", "\"\xF0\x9F\x98\x80\"", "[-1,0,1.5,1e5]",
        "{\"a\" : 1 , \"b\" : [ ] }"}) {
    EXPECT_TRUE(IsJson(text)) << text;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "\"",
                           "01",
                           "-",
                           "1.",
                           ".5",
                           "1e",
                           "+1",
                           "tru",
                           "nul",
                           "True",
                           "[1,]",
                           "{,}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":1,})",
                           "[1 2]",
                           "{}x",
                           "[]]",
                           "\"\n\"",
                           R"("\x")",
                           R"("\u12g4")",
                           "\"\xC3\"",
                           "\"\xC0\x80\"",
                           "\"\xED\xA0\x80\"",
                           "'a'",
                           "{a:1}",
                           "[}",
                           "{]",
                           "1 2"}) {
    EXPECT_FALSE(IsJson(text)) << text;
    EXPECT_FALSE(nlohmann::json::accept(text)) << text;
  }
}

TEST(JsonScannerTest, EndsWhereTheValueEnds) {
  JsonScanner object;
  const std::string text = R"({"a":[1]})";
  for (size_t i = 0; i + 1 < text.size(); ++i)
    EXPECT_EQ(object.Push(text[i]), JsonScanner::Step::kMore);
  EXPECT_EQ(object.Push('}'), JsonScanner::Step::kEnd);
  JsonScanner number;
  EXPECT_EQ(number.Push('7'), JsonScanner::Step::kMore);
  EXPECT_TRUE(number.EndsHere());
  EXPECT_EQ(number.Push(' '), JsonScanner::Step::kPast);
}

TEST(JsonScannerTest, RefusesTooDeepNesting) {
  const auto nested = [](int depth) {
    const auto count = static_cast<size_t>(depth);
    return std::string(count, '[') + std::string(count, ']');
  };
  EXPECT_TRUE(IsJson(nested(JsonScanner::kMaxDepth)));
  EXPECT_FALSE(IsJson(nested(JsonScanner::kMaxDepth + 1)));
  EXPECT_FALSE(IsJson(std::string(1 << 20, '[')));
}

TEST(JsonScannerTest, ObjectsAreRecognized) {
  EXPECT_TRUE(IsJsonObject(" {\"a\":1} "));
  EXPECT_FALSE(IsJsonObject("[1]"));
  EXPECT_FALSE(IsJsonObject("{\"a\":1"));
  EXPECT_FALSE(IsJsonObject(""));
}

TEST(JsonScannerTest, EscapesAreDecoded) {
  EXPECT_EQ(JsonUnescaped(R"(a\"\\\/\b\f\n\r\t)"), "a\"\\/\b\f\n\r\t");
  EXPECT_EQ(JsonUnescaped(R"(\u00e9\u20AC\ud83d\ude00)"), "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(JsonUnescaped(R"(\ud83dx\ude00)"), "\xEF\xBF\xBDx\xEF\xBF\xBD");
}

}  // namespace
}  // namespace diffserve
