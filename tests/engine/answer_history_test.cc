// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/answer_history.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"

namespace diffserve {
namespace {

using testing::FakeExecutor;
using Tokens = std::vector<int32_t>;

constexpr int64_t kEnough = 1 << 20;  // operations
constexpr int64_t kRoom = 1 << 20;    // bytes

Tokens Counting(int32_t first, int size) {
  Tokens tokens;
  for (int i = 0; i < size; ++i) tokens.push_back(first + i);
  return tokens;
}

// The tokens after the longest match of `text`, up to four.
Tokens After(AnswerHistory& history, const std::string& owner, const Tokens& text) {
  const AnswerHistory::Found found = history.Find(owner, {.outputs = text}, 3, 4);
  Tokens tokens;
  for (int i = 0; found.match.length > 0 && i < 4; ++i) {
    const int32_t token = found.text[found.match.next + i];
    if (token < 0) break;
    tokens.push_back(token);
  }
  return tokens;
}

TEST(AnswerHistoryTest, FindsWhatFollowedTheLongestEnd) {
  AnswerHistory history(kRoom);
  history.Add("a", Counting(100, 20), Tokens{1, 2, 3, 4, 5, 6, 7, 9, 3, 4, 5, 8});
  EXPECT_EQ(After(history, "a", {2, 3, 4, 5}), Tokens()) << "it is not read yet";
  history.Read(kEnough);
  EXPECT_EQ(After(history, "a", {2, 3, 4, 5}), (Tokens{6, 7, 9, 3}));
  EXPECT_EQ(After(history, "a", {50, 3, 4, 5}), Tokens{8}) << "the latest of equal ones";
  EXPECT_EQ(After(history, "a", {50, 4, 5}), Tokens()) << "too short";
  EXPECT_EQ(After(history, "a", Counting(90, 30)), (Tokens{1, 2, 3, 4})) << "as an answer began";
  history.Add("a", Counting(200, 20), Tokens{60, 61, 62, 63, 64});
  history.Read(kEnough);
  EXPECT_EQ(After(history, "a", {8, 216, 217, 218, 219}), (Tokens{60, 61, 62, 63}));
  EXPECT_EQ(After(history, "a", {5, 8, 216}), Tokens()) << "no match spans two answers";
}

TEST(AnswerHistoryTest, OwnersNeverSeeEachOther) {
  AnswerHistory history(kRoom);
  history.Add("a", {}, Counting(1, 50));
  history.Add("b", {}, Counting(1, 10));
  history.Read(kEnough);
  EXPECT_EQ(After(history, "a", {8, 9, 10}), (Tokens{11, 12, 13, 14}));
  EXPECT_EQ(After(history, "b", {8, 9, 10}), Tokens());
  EXPECT_EQ(After(history, "b", {11, 12, 13}), Tokens());
  EXPECT_EQ(After(history, "c", {8, 9, 10}), Tokens());
}

TEST(AnswerHistoryTest, MemoryIsBoundedAndOldAnswersGo) {
  constexpr int64_t kSmall = 400 * AnswerHistory::kBytesPerToken;
  AnswerHistory history(kSmall);
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    history.Add("a", {}, Counting(100 * i, 20 + static_cast<int>(random() % 200)));
    history.Read(kEnough);
    EXPECT_GT(history.bytes(), 0);
    ASSERT_LE(history.bytes(), kSmall);
  }
  EXPECT_EQ(After(history, "a", Counting(0, 10)), Tokens());
  EXPECT_FALSE(After(history, "a", Counting(29900, 10)).empty());
}

TEST(AnswerHistoryTest, OwnerThatWasUsedLeastRecentlyIsDropped) {
  constexpr int64_t kSmall = 1000 * AnswerHistory::kBytesPerToken;
  AnswerHistory history(kSmall);
  for (const char* owner : {"a", "b", "c", "d"}) history.Add(owner, {}, Counting(1, 150));
  history.Read(kEnough);
  EXPECT_EQ(history.num_owners(), 4);
  EXPECT_FALSE(After(history, "a", {8, 9, 10}).empty());
  history.Add("e", {}, Counting(1, 150));
  EXPECT_EQ(history.num_owners(), 4);
  EXPECT_FALSE(After(history, "a", {8, 9, 10}).empty()) << "it was used last";
  EXPECT_EQ(After(history, "b", {8, 9, 10}), Tokens());
  for (int i = 0; i < 1000; ++i) history.Add("owner" + std::to_string(i), {}, Counting(1, 1));
  EXPECT_LE(history.num_owners(), 1000 / 64);
  EXPECT_LE(history.Read(kEnough), kEnough);
  EXPECT_LE(history.bytes(), kSmall);
}

TEST(AnswerHistoryTest, RoomForNothingKeepsNothing) {
  AnswerHistory history(1000);
  history.Add("a", {}, Counting(1, 50));
  EXPECT_EQ(history.bytes(), 0);
  EXPECT_EQ(history.num_owners(), 0);
}

// ---- In the scheduler.

uint64_t AcceptedFromHistory(const Scheduler& scheduler) {
  GuessCounts accepted = scheduler.proposals().counters().accepted_tokens;
  return accepted.of(GuessSource::kHistory);
}

// Runs the same question for one owner after another. With `ended_as`, all but the last are ended
// from outside after 30 tokens. Returns the tokens that the last one accepted from past answers.
uint64_t AcceptedByTheLast(const std::vector<std::string>& owners,
                           FinishReason ended_as = FinishReason::kNone) {
  EngineOptions options = testing::SmallEngine();
  options.num_pages = 64;
  options.speculative_tokens = 7;
  options.speculative_history_bytes = kRoom;
  Scheduler scheduler(options);
  FakeExecutor executor(options, {});
  uint64_t accepted = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    accepted = AcceptedFromHistory(scheduler);
    Request request = testing::MakeRequest(i + 1, 6, 40);
    request.history_owner = owners[i];
    request.sampling.seed = 5;
    const Tokens expected = FakeExecutor::Continue(request);
    scheduler.Add(std::move(request));
    Tokens outputs;
    while (scheduler.HasWork()) {
      executor.Launch(scheduler.Plan({.overhead_tokens = 100}));
      for (const TokenEvent& event : scheduler.Commit(executor.Collect()))
        outputs.insert(outputs.end(), event.tokens.begin(), event.tokens.end());
      const bool is_last = i + 1 == owners.size();
      if (ended_as != FinishReason::kNone && !is_last && outputs.size() >= 30) {
        EXPECT_TRUE(scheduler.End(i + 1, ended_as, {}).has_value());
        outputs = expected;
      }
    }
    EXPECT_EQ(outputs, expected) << owners[i];
  }
  return AcceptedFromHistory(scheduler) - accepted;
}

TEST(AnswerHistoryTest, PastAnswersOfTheSameOwnerAreProposed) {
  EXPECT_GT(AcceptedByTheLast({"key:0", "key:0"}), 20u);
  EXPECT_EQ(AcceptedByTheLast({"key:0", "key:1"}), 0u);
  EXPECT_EQ(AcceptedByTheLast({"key:0", ""}), 0u);
  EXPECT_EQ(AcceptedByTheLast({"", ""}), 0u) << "without an owner nothing is kept";
}

TEST(AnswerHistoryTest, AnswerThatAStopStringEndedIsKept) {
  EXPECT_GT(AcceptedByTheLast({"a", "a"}, FinishReason::kStop), 15u);
  EXPECT_EQ(AcceptedByTheLast({"a", "a"}, FinishReason::kCancelled), 0u);
}

}  // namespace
}  // namespace diffserve
