// SPDX-License-Identifier: Apache-2.0
#include "engine/response_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace diffserve {
namespace {

ResponseDelta Text(size_t bytes) {
  return {0, std::string(bytes, 'x'), {}, FinishReason::kNone, {}};
}

size_t Drain(ResponseStream& stream) {
  size_t count = 0;
  while (stream.TryPop()) ++count;
  return count;
}

TEST(ResponseStreamTest, EventsComeInOrderAndEachIsNotified) {
  int notified = 0;
  ResponseStream stream(1 << 20, [&] { ++notified; });
  EXPECT_TRUE(stream.Push(ResponseStarted{}));
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(stream.Push(ResponseDelta{i, "t", {}, FinishReason::kNone, {}}));
  EXPECT_TRUE(stream.Push(ResponseDone{}));
  EXPECT_EQ(notified, 12);
  EXPECT_TRUE(std::holds_alternative<ResponseStarted>(*stream.TryPop()));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(std::get<ResponseDelta>(*stream.TryPop()).choice, i);
  EXPECT_TRUE(std::holds_alternative<ResponseDone>(*stream.TryPop()));
  EXPECT_FALSE(stream.TryPop());
}

TEST(ResponseStreamTest, QueueIsBoundedInBytesAndDoneAlwaysFits) {
  ResponseStream stream(64 << 10, nullptr);
  size_t taken = 0;
  while (stream.Push(Text(1000))) ++taken;
  EXPECT_GT(taken, 40u);
  EXPECT_LT(taken, 66u);
  EXPECT_FALSE(stream.Push(Text(1)))
      << "after an overflow nothing is taken, or text would be missing in between";
  EXPECT_TRUE(stream.Push(ResponseDone{Status(StatusCode::kResourceExhausted, "slow"), {}}));
  EXPECT_FALSE(stream.Push(ResponseDone{})) << "only one";
  EXPECT_EQ(Drain(stream), taken + 1);
}

TEST(ResponseStreamTest, ReaderThatKeepsUpNeverOverflows) {
  ResponseStream stream(16 << 10, nullptr);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(stream.Push(Text(1000)));
    ASSERT_TRUE(stream.Push(Text(1000)));
    ASSERT_EQ(Drain(stream), 2u);
  }
}

ResponsePromptLogprobs Scores(size_t tokens, int shared_by) {
  const SampleResult score{.top_logprobs = std::vector<TokenLogprob>(20)};
  return {0, std::make_shared<const std::vector<SampleResult>>(tokens, score), shared_by};
}

TEST(ResponseStreamTest, EventIsCountedByTheBytesItHolds) {
  const size_t bytes = HeldBytes(Scores(1000, 1));
  EXPECT_GE(bytes, 1000 * (sizeof(SampleResult) + 20 * sizeof(TokenLogprob)));
  ResponseStream tight(bytes - 1, nullptr), wide(bytes, nullptr);
  EXPECT_FALSE(tight.Push(Scores(1000, 1)));
  EXPECT_TRUE(wide.Push(Scores(1000, 1)));
  EXPECT_FALSE(wide.Push(Text(100)));
}

TEST(ResponseStreamTest, SharedBytesAreCountedOnce) {
  const size_t bytes = HeldBytes(Scores(1000, 1));
  ResponseStream stream(bytes + 8 * sizeof(ResponseEvent), nullptr);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(stream.Push(Scores(1000, 8)));
  EXPECT_FALSE(stream.Push(Scores(1000, 8)));
}

TEST(ResponseStreamTest, AllowanceIsAddedToTheLimit) {
  ResponseStream stream(10 << 10, nullptr);
  stream.Allow(1 << 20);
  EXPECT_TRUE(stream.Push(Text(1 << 20)));
  EXPECT_TRUE(stream.Push(Text(5000)));
  EXPECT_FALSE(stream.Push(Text(10 << 10)));
}

TEST(ResponseStreamTest, KeptObjectIsReleasedWithItsLastHolder) {
  auto kept = std::make_shared<int>(1);
  auto stream = std::make_shared<ResponseStream>(1000, nullptr);
  stream->Keep(kept);
  const auto holder = stream;
  stream->Push(ResponseDone{});
  stream->Close();
  stream.reset();
  EXPECT_EQ(kept.use_count(), 2);
}

TEST(ResponseStreamTest, AfterCloseNothingIsQueuedOrNotified) {
  int notified = 0;
  ResponseStream stream(1 << 20, [&] { ++notified; });
  EXPECT_TRUE(stream.Push(Text(1)));
  stream.Close();
  EXPECT_FALSE(stream.Push(Text(1)));
  EXPECT_FALSE(stream.Push(ResponseDone{}));
  EXPECT_FALSE(stream.TryPop());
  EXPECT_EQ(notified, 1);
}

TEST(ResponseStreamTest, NotifyMayTakeEvents) {
  ResponseStream* self = nullptr;
  int taken = 0;
  ResponseStream stream(1 << 20, [&] { taken += self->TryPop().has_value(); });
  self = &stream;
  EXPECT_TRUE(stream.Push(Text(1)));
  EXPECT_TRUE(stream.Push(Text(1)));
  EXPECT_EQ(taken, 2);
}

TEST(ResponseStreamTest, IsOpenUntilItsEndAnOverflowOrClose) {
  ResponseStream ended(1 << 20, nullptr), full(2000, nullptr), closed(1 << 20, nullptr);
  for (ResponseStream* stream : {&ended, &full, &closed}) EXPECT_TRUE(stream->is_open());
  ended.Push(ResponseDone{});
  while (full.Push(Text(1000))) {
  }
  closed.Close();
  for (ResponseStream* stream : {&ended, &full, &closed}) EXPECT_FALSE(stream->is_open());
}

TEST(ResponseStreamTest, CloseWaitsForTheNotifyThatRunsAndNoneFollows) {
  int notified = 0;
  std::future<void> closing;
  ResponseStream* self = nullptr;
  ResponseStream stream(1 << 20, [&] {
    ++notified;
    closing = std::async(std::launch::async, [&] { self->Close(); });
    EXPECT_EQ(closing.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  });
  self = &stream;
  EXPECT_TRUE(stream.Push(Text(1)));
  closing.get();
  EXPECT_FALSE(stream.Push(Text(1)));
  EXPECT_EQ(notified, 1);
}

TEST(ResponseStreamTest, EveryEventOfAnotherThreadArrivesOnceAndInOrder) {
  std::atomic<int> notified = 0;
  ResponseStream stream(64 << 20, [&] { ++notified; });
  std::thread pusher([&stream] {
    for (int i = 0; i < 2000; ++i)
      EXPECT_TRUE(stream.Push(ResponseDelta{0, std::to_string(i), {}, FinishReason::kNone, {}}));
  });
  for (int next = 0; next < 2000;) {
    const auto event = stream.TryPop();
    if (!event) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(std::get<ResponseDelta>(*event).text, std::to_string(next++));
  }
  pusher.join();
  EXPECT_EQ(notified, 2000);
}

}  // namespace
}  // namespace diffserve
