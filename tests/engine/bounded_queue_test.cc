// SPDX-License-Identifier: Apache-2.0
#include "engine/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace diffserve {
namespace {

TEST(BoundedQueueTest, FullQueueRefusesAndLeavesTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto item = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(item)));
  ASSERT_NE(item, nullptr);
  EXPECT_EQ(**queue.Pop(), 1);
  EXPECT_TRUE(queue.TryPush(std::move(item)));
}

TEST(BoundedQueueTest, ClosedQueueIsEmptiedAndThenEnds) {
  BoundedQueue<int> queue(4);
  queue.TryPush(1);
  queue.TryPush(2);
  queue.Close();
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_FALSE(queue.PushWait(3));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, PushUnboundedAcceptsAndCountsItemsAboveTheCapacity) {
  BoundedQueue<int> queue(1);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.PushUnbounded(2));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_FALSE(queue.finished());
  queue.Close();
  EXPECT_FALSE(queue.PushUnbounded(4));
  EXPECT_FALSE(queue.finished());
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_TRUE(queue.finished());
}

TEST(BoundedQueueTest, PopUntilReturnsNothingAtItsLimit) {
  BoundedQueue<int> queue(1);
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(queue.PopUntil(now + std::chrono::milliseconds(5)), std::nullopt);
  EXPECT_GE(std::chrono::steady_clock::now(), now + std::chrono::milliseconds(5));
  queue.TryPush(1);
  EXPECT_EQ(queue.PopUntil(now), 1) << "a queued item is returned at any time";
}

TEST(BoundedQueueTest, ItemsArriveOnceInProducerOrder) {
  BoundedQueue<std::pair<int, int>> queue(3);
  constexpr int kProducers = 3, kEach = 500;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) EXPECT_TRUE(queue.PushWait({p, i}));
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int i = 0; i < kProducers * kEach; ++i) {
    const auto item = queue.Pop();
    ASSERT_TRUE(item.has_value());
    EXPECT_EQ(item->second, next[item->first]++);
    EXPECT_LE(queue.size(), 3u);
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueueTest, CloseWakesAWaitingProducer) {
  BoundedQueue<int> queue(1);
  queue.TryPush(1);
  std::thread producer([&] { EXPECT_FALSE(queue.PushWait(2)); });
  std::thread consumer([&] { queue.Close(); });
  consumer.join();
  producer.join();
}

}  // namespace
}  // namespace diffserve
