// SPDX-License-Identifier: Apache-2.0
// Texts that are made in pieces equal those made at once.
#include "server/json/text_pieces.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "server/json/json.h"

namespace diffserve {
namespace {

std::string Written(TextPieces& pieces, size_t enough) {
  std::string all;
  while (!pieces.empty()) {
    std::string piece;
    pieces.Write(enough, &piece);
    all += piece;
  }
  return all;
}

TEST(TextPiecesTest, AddedPiecesFollowTheirItem) {
  for (const size_t enough : {size_t{1}, size_t{3}, size_t{1000}}) {
    TextPieces pieces;
    pieces.Add("<");
    pieces.AddItems(3, [&pieces](size_t i, std::string* out) {
      *out += std::to_string(i);
      pieces.AddItems(i, [&pieces, i](size_t j, std::string* out) {
        *out += static_cast<char>('a' + j);
        if (i == 2 && j == 0) pieces.Add("!");
      });
      pieces.Add(";");
    });
    pieces.Add(">");
    EXPECT_EQ(Written(pieces, enough), "<0;1a;2a!b;>");
  }
}

TEST(TextPiecesTest, OnlyRequestedBytesAreMade) {
  TextPieces pieces;
  size_t made = 0;
  pieces.AddItems(1000, [&made](size_t, std::string* out) {
    ++made;
    *out += "0123456789";
  });
  std::string out;
  pieces.Write(95, &out);
  EXPECT_EQ(out.size(), 100u);
  EXPECT_EQ(made, 10u);
  EXPECT_FALSE(pieces.empty());
  pieces.Write(~size_t{0}, &out);
  EXPECT_EQ(made, 1000u);
  EXPECT_TRUE(pieces.empty());
}

// Whole characters of each length, broken ones, quotes and controls, in any order.
std::string AnyText(std::mt19937& random, size_t bytes) {
  const std::string kinds[] = {"a", "\"", "\n", "é", "日", "😀", "\xF0\x9F\x98", "\x80", "\xFF"};
  std::string text;
  while (text.size() < bytes) text += kinds[random() % std::size(kinds)];
  return text;
}

TEST(TextPiecesTest, LongStringIsQuotedAsAWhole) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    const std::string text = AnyText(random, 100'000);
    TextPieces pieces;
    pieces.AddQuoted(text);
    EXPECT_EQ(Written(pieces, 1), JsonQuoted(text));
  }
  for (const std::string& text :
       {std::string(), std::string(50'000, '\x80'), std::string("a\"b")}) {
    TextPieces pieces;
    pieces.AddQuoted(text);
    EXPECT_EQ(Written(pieces, 1), JsonQuoted(text));
  }
}

TEST(TextPiecesTest, NumbersAreReadBackAsTheyWere) {
  std::mt19937_64 random(1);
  std::vector<double> numbers = {0, -1, -9999, -0.1f, -1e-30f, 1e300};
  for (int i = 0; i < 10'000; ++i)
    numbers.push_back(-static_cast<double>(random()) / static_cast<double>(random() | 1));
  for (const double number : numbers) {
    std::string text;
    AppendJsonNumber(number, &text);
    const auto read = nlohmann::json::parse(text);
    EXPECT_TRUE(read.is_number_float()) << text;
    EXPECT_EQ(read.get<double>(), number) << text;
  }
}

}  // namespace
}  // namespace diffserve
