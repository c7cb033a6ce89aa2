// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/suffix_tree.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <string>

namespace diffserve {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Matches by reading the whole text.
SuffixTree::Match MatchByReading(const Tokens& text, int ahead) {
  const int size = static_cast<int>(text.size());
  SuffixTree::Match match;
  for (int end = size - 1; end > 0; --end) {
    int length = 0;
    while (length < end && text[end - 1 - length] == text[size - 1 - length]) ++length;
    if (length > match.length) match = {.length = length, .next = end};
  }
  if (match.length == 0) return match;
  for (int i = 0; i <= ahead; ++i) {
    // An occurrence that reaches the end of the text differs from all others there.
    int count = 0;
    for (int end = match.length; end < size; ++end) {
      const auto alike = [&](int at, int length) {
        return std::max(end, match.next) + length <= size &&
               std::equal(text.begin() + at, text.begin() + at + length + match.length,
                          text.begin() + match.next - match.length);
      };
      count += end == match.next || alike(end - match.length, i) ? 1 : 0;
    }
    match.counts.push_back(count);
  }
  return match;
}

// Texts that repeat parts of themselves, and others.
Tokens RandomText(uint64_t seed, int size) {
  std::mt19937_64 random(seed);
  const uint64_t vocab = 2 + random() % 40;
  const bool repeats = seed % 2 == 1;
  Tokens text;
  while (std::ssize(text) < size) {
    const uint64_t length = repeats && !text.empty() && random() % 4 == 0 ? 1 + random() % 50 : 0;
    for (uint64_t i = 0, from = length > 0 ? random() % text.size() : 0; i < length; ++i)
      text.push_back(text[from + i]);
    text.push_back(static_cast<int32_t>(random() % vocab));
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

Tokens FibonacciWord(int size) {
  Tokens word = {0}, before = {1};
  while (std::ssize(word) < size) {
    Tokens next = word;
    next.insert(next.end(), before.begin(), before.end());
    before = std::exchange(word, next);
  }
  word.resize(static_cast<size_t>(size));
  return word;
}

// Runs of one token that end at ever different lengths: each run has a node per length.
Tokens Runs(int size) {
  Tokens text;
  for (int run = 1; std::ssize(text) < size; ++run) {
    text.insert(text.end(), static_cast<size_t>(run), 0);
    text.push_back(1 + run % 3);
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

std::map<std::string, Tokens> HostileTexts(int size) {
  Tokens distinct(static_cast<size_t>(size));
  for (size_t i = 0; i < distinct.size(); ++i) distinct[i] = static_cast<int32_t>(i);
  Tokens twice = RandomText(2, size / 2);
  twice.insert(twice.end(), twice.begin(), twice.end());
  twice.back() ^= 1;
  Tokens equal(static_cast<size_t>(size), 7), broken = equal;
  broken.back() = 8;
  return {{"equal", equal},
          {"equal, then another", broken},
          {"distinct", distinct},
          {"twice, then another", twice},
          {"Fibonacci", FibonacciWord(size)},
          {"runs", Runs(size)},
          {"random", RandomText(0, size)},
          {"repetitive", RandomText(1, size)}};
}

TEST(SuffixTreeTest, MatchesEqualThoseOfASearchOfTheWholeText) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Tokens text = seed == 0 ? FibonacciWord(400) : RandomText(seed, 400);
    SuffixTree tree;
    for (size_t size = 1; size <= text.size(); ++size) {
      const Tokens read(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
      const std::span<const int32_t> all = read;
      const SequenceText pieces = {all.first(size / 3), all.subspan(size / 3, size / 4),
                                   all.subspan(size / 3 + size / 4)};
      tree.Extend(pieces, kNoLimit);
      ASSERT_EQ(tree.size(), static_cast<int>(size));
      const SuffixTree::Match match = tree.LongestMatch(pieces, 5);
      const SuffixTree::Match expected = MatchByReading(read, 5);
      ASSERT_EQ(match.length, expected.length) << "seed=" << seed << " size=" << size;
      ASSERT_EQ(match.next, expected.next) << "seed=" << seed << " size=" << size;
      ASSERT_EQ(match.counts, expected.counts) << "seed=" << seed << " size=" << size;
    }
  }
}

// On hostile texts the latest occurrence may be missed, but not the longest match.
TEST(SuffixTreeTest, LongestMatchesAreFoundInHostileTexts) {
  for (const auto& [name, text] : HostileTexts(700)) {
    SuffixTree tree;
    for (size_t size = 1; size <= text.size(); size += size < 10 ? 1 : 23) {
      const Tokens read(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
      tree.Extend({.prompt = read}, kNoLimit);
      const SuffixTree::Match match = tree.LongestMatch({.prompt = read}, 1);
      ASSERT_EQ(match.length, MatchByReading(read, 1).length) << name << " size=" << size;
      ASSERT_TRUE(std::equal(read.end() - match.length, read.end(),
                             read.begin() + match.next - match.length))
          << name << " size=" << size;
      ASSERT_LT(match.next, static_cast<int>(size) + (match.length == 0 ? 1 : 0));
    }
  }
}

TEST(SuffixTreeTest, BudgetsDivideTheWorkAndChangeNothing) {
  for (const auto& [name, text] : HostileTexts(3000)) {
    SuffixTree whole, divided;
    const int64_t operations = whole.Extend({.prompt = text}, kNoLimit);
    int64_t divided_operations = 0;
    for (int calls = 0; divided.size() < std::ssize(text); ++calls) {
      const size_t before = divided.bytes();
      const int64_t used = divided.Extend({.prompt = text}, 100);
      const bool has_grown = divided.bytes() > before;
      ASSERT_LE(used, has_grown ? 20'000 : 100 + 200) << name;
      divided_operations += used;
      ASSERT_LT(calls, 3000) << name;
    }
    EXPECT_EQ(divided_operations, operations) << name;
    const SuffixTree::Match match = whole.LongestMatch({.prompt = text}, 3);
    const SuffixTree::Match same = divided.LongestMatch({.prompt = text}, 3);
    EXPECT_EQ(same.length, match.length) << name;
    EXPECT_EQ(same.next, match.next) << name;
    EXPECT_EQ(same.counts, match.counts) << name;
    EXPECT_EQ(divided.Extend({.prompt = text}, 100), 0) << "everything has been read";
  }
}

TEST(SuffixTreeTest, OperationsAndMemoryAreLinearInTheText) {
  constexpr int kSize = 1 << 17;
  for (const auto& [name, text] : HostileTexts(kSize)) {
    SuffixTree tree;
    const double operations = static_cast<double>(tree.Extend({.prompt = text}, kNoLimit)) / kSize;
    const double bytes = static_cast<double>(tree.bytes()) / kSize;
    RecordProperty(name + " operations", std::to_string(operations));
    RecordProperty(name + " bytes", std::to_string(bytes));
    EXPECT_LT(operations, 90) << name;
    EXPECT_LE(bytes, 84) << name;
  }
}

TEST(SuffixTreeTest, EmptyTextHasNoMatch) {
  SuffixTree tree;
  EXPECT_EQ(tree.Extend({}, 100), 0);
  EXPECT_EQ(tree.LongestMatch({}, 3).length, 0);
  EXPECT_EQ(tree.bytes(), 0u);
}

}  // namespace
}  // namespace diffserve
