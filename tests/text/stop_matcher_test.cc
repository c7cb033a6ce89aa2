// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "engine/text/detokenizer.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << "'" << outcome.text << "' "
             << (outcome.matched ? static_cast<int>(*outcome.matched) : -1);
}

// By the definition: the shortest prefix of `text` (beyond `quiet` bytes) that ends in a stop
// string, the longest such stop string.
Outcome MatchedByDefinition(const std::vector<std::string>& stops, const std::string& text,
                            bool include, size_t quiet) {
  for (size_t end = quiet + 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t s = 0; s < stops.size(); ++s) {
      const bool ends = !stops[s].empty() && text.substr(0, end).ends_with(stops[s]);
      if (ends && (!best || stops[s].size() > stops[*best].size())) best = s;
    }
    if (best) return {text.substr(0, include ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

// The longest suffix of `text` that is a proper prefix of a stop string.
size_t HeldByDefinition(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t n = text.size(); n > 0; --n) {
    for (const std::string& stop : stops) {
      if (n < stop.size() && stop.starts_with(text.substr(text.size() - n))) return n;
    }
  }
  return 0;
}

TEST(StopMatcherTest, MatchesTheDefinitionAtEveryCut) {
  std::mt19937 random(1);
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& stop : stops) {
      for (size_t n = random() % 6; n > 0; --n) stop.push_back("ab\n"[random() % 3]);
    }
    std::string text;
    for (size_t n = random() % 30; n > 0; --n) text.push_back("ab\n"[random() % 3]);
    const bool include = random() % 2 == 0;
    const size_t quiet = random() % 3 == 0 ? random() % (text.size() + 1) : 0;
    StopMatcher matcher(stops, include);
    Outcome outcome;
    for (size_t i = 0; i < text.size() && !outcome.matched;) {
      size_t n = 1 + random() % 4;
      if (i < quiet) n = std::min(n, quiet - i);
      const StopMatcher::Piece piece = matcher.Push(std::string_view(text).substr(i, n),
                                                    i >= quiet);
      outcome.text += piece.text;
      outcome.matched = piece.matched;
      i += n;
      const std::string seen = text.substr(0, i);
      if (!piece.matched) {
        ASSERT_EQ(outcome.text.size(), seen.size() - HeldByDefinition(stops, seen))
            << ::testing::PrintToString(stops) << " " << seen;
      }
    }
    if (!outcome.matched) outcome.text += matcher.Finish();
    matches += outcome.matched.has_value();
    ASSERT_EQ(outcome, MatchedByDefinition(stops, text, include, quiet))
        << ::testing::PrintToString(stops) << " in " << text;
  }
  EXPECT_GT(matches, 5000);
}

TEST(StopMatcherTest, WithoutStopStringsNothingIsHeld) {
  StopMatcher matcher({}, false);
  EXPECT_EQ(matcher.Push("abc").text, "abc");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, NoByteOfAStopStringSplitOverOneToEightTokensLeaks) {
  std::mt19937 random(9);
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const std::vector<std::string> stops = {"<|stop|>", "世界", "👩‍👩‍👧",
                                          "\n\nHuman:", "END"};
  size_t most_tokens = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string& stop = stops[random() % stops.size()];
    const std::string before = "before it. ";
    std::vector<int32_t> ids = tokenizer->Encode(before, false).value();
    // The stop string's bytes as single tokens or as encoded: every split that tokens allow.
    for (size_t i = 0; i < stop.size();) {
      const size_t n = std::min<size_t>(1 + random() % 4, stop.size() - i);
      size_t end = i + n;
      while (end < stop.size() && (static_cast<unsigned char>(stop[end]) & 0xC0) == 0x80) ++end;
      const auto part = tokenizer->Encode(stop.substr(i, end - i), false).value();
      ids.insert(ids.end(), part.begin(), part.end());
      i = end;
    }
    most_tokens = std::max(most_tokens, ids.size());
    const std::vector<int32_t> after = tokenizer->Encode(" after", false).value();
    ids.insert(ids.end(), after.begin(), after.end());

    Detokenizer detokenizer(*tokenizer, true);
    StopMatcher matcher(stops, false);
    std::string shown;
    bool matched = false;
    for (const int32_t id : ids) {
      const StopMatcher::Piece piece = matcher.Push(detokenizer.Push(id));
      shown += piece.text;
      ASSERT_TRUE(before.starts_with(shown)) << shown;
      if ((matched = piece.matched.has_value())) {
        EXPECT_EQ(stops[*piece.matched], stop);
        break;
      }
    }
    ASSERT_TRUE(matched);
    ASSERT_EQ(shown, before);
  }
  EXPECT_GT(most_tokens, 12u);
}

}  // namespace
}  // namespace diffserve
