// SPDX-License-Identifier: Apache-2.0
#include "server/observe/kv_event_feed.h"

#include <gmock/gmock.h>

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

KvEvent PageStored(uint64_t hash) {
  KvEvent event;
  event.hashes = {hash};
  event.tokens = {7, 8};
  return event;
}

class KvEventFeedTest : public ::testing::Test {
 protected:
  static KvEventFeed WithRoomFor(size_t batches) {
    return KvEventFeed({.page_size = 2, .max_batches = batches});
  }
  static void AppendNumbers(KvEventFeed& feed, uint64_t first, uint64_t last) {
    for (uint64_t number = first; number <= last; ++number) {
      const KvEvent event = PageStored(number);
      feed.Append(number, 0.5, {&event, 1});
    }
  }
  static int64_t Subscribed(KvEventFeed& feed, uint64_t last_number) {
    return feed.Subscribe(last_number, [] {}).value();
  }
  // The batches that the subscriber may read now.
  static std::vector<uint64_t> Numbers(KvEventFeed& feed, int64_t subscription) {
    std::vector<uint64_t> numbers;
    for (;;) {
      const auto next = feed.Next(subscription);
      if (!next.ok() || *next == nullptr) return numbers;
      numbers.push_back((*next)->number);
    }
  }
  static StatusCode Refusal(KvEventFeed& feed, uint64_t last_number) {
    return feed.Subscribe(last_number, [] {}).status().code();
  }
};

TEST_F(KvEventFeedTest, SubscriberWithoutANumberGetsAllBatchesFromTheFirst) {
  KvEventFeed feed = WithRoomFor(10);
  AppendNumbers(feed, 0, 3);
  const int64_t subscription = Subscribed(feed, 0);
  EXPECT_THAT(Numbers(feed, subscription), ElementsAre(0, 1, 2, 3));
  AppendNumbers(feed, 4, 5);
  EXPECT_THAT(Numbers(feed, subscription), ElementsAre(4, 5));
}

TEST_F(KvEventFeedTest, SubscriberWithoutANumberGetsNoHalfOfTheHistory) {
  KvEventFeed feed = WithRoomFor(2);
  AppendNumbers(feed, 0, 3);
  const int64_t subscription = Subscribed(feed, 0);
  EXPECT_THAT(Numbers(feed, subscription), IsEmpty());
  AppendNumbers(feed, 4, 4);
  EXPECT_THAT(Numbers(feed, subscription), ElementsAre(4));
}

TEST_F(KvEventFeedTest, SubscriberGoesOnAfterTheNumberThatItHas) {
  KvEventFeed feed = WithRoomFor(3);
  AppendNumbers(feed, 0, 5);
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 4)), ElementsAre(5));
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 2)), ElementsAre(3, 4, 5));
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 5)), IsEmpty());
}

TEST_F(KvEventFeedTest, NumberBeforeTheWindowOrNotSentYetIsRefusedWithTheRange) {
  KvEventFeed feed = WithRoomFor(3);
  EXPECT_EQ(Refusal(feed, 1), StatusCode::kInvalidArgument);
  AppendNumbers(feed, 0, 5);
  EXPECT_EQ(Refusal(feed, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusal(feed, 6), StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusal(feed, ~uint64_t{0}), StatusCode::kInvalidArgument);
  EXPECT_THAT(feed.Subscribe(1, [] {}).status().message(),
              HasSubstr("start_sequence_number is 1; allowed: 0, or 2 to 5"));
  EXPECT_EQ(Refusal(feed, 2), StatusCode::kOk);
}

TEST_F(KvEventFeedTest, DroppedBatchesAreAGapInTheNumbersThatASubscriberSees) {
  KvEventFeed feed = WithRoomFor(10);
  AppendNumbers(feed, 0, 1);
  AppendNumbers(feed, 5, 6);
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 0)), ElementsAre(0, 1, 5, 6));
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 1)), ElementsAre(5, 6));
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 3)), ElementsAre(5, 6));
}

TEST_F(KvEventFeedTest, SlowSubscriberLosesItsPlaceAndTheOthersNothing) {
  KvEventFeed feed = WithRoomFor(3);
  const int64_t slow = Subscribed(feed, 0), quick = Subscribed(feed, 0);
  for (uint64_t number = 0; number < 5; ++number) {
    AppendNumbers(feed, number, number);
    EXPECT_THAT(Numbers(feed, quick), ElementsAre(number));
  }
  const Status status = feed.Next(slow).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("2 batches"));
}

TEST_F(KvEventFeedTest, BytesBoundTheWindowButTheNewestBatchStays) {
  KvEventFeed feed({.page_size = 2, .max_bytes = 1});
  AppendNumbers(feed, 0, 2);
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 1)), ElementsAre(2));
  EXPECT_EQ(Refusal(feed, 0), StatusCode::kOk);
  EXPECT_THAT(Numbers(feed, Subscribed(feed, 0)), IsEmpty());
}

TEST_F(KvEventFeedTest, EventsAreCountedFromOne) {
  KvEventFeed feed = WithRoomFor(10);
  const std::vector<KvEvent> two = {PageStored(1), PageStored(2)};
  feed.Append(0, 0.5, two);
  feed.Append(1, 1.5, two);
  const int64_t subscription = Subscribed(feed, 0);
  EXPECT_EQ((*feed.Next(subscription).value()).first_event_id, 1u);
  const auto second = feed.Next(subscription).value();
  EXPECT_EQ(second->first_event_id, 3u);
  EXPECT_EQ(second->unix_seconds, 1.5);
  EXPECT_EQ(second->events[1].hashes, two[1].hashes);
}

TEST_F(KvEventFeedTest, EachBatchWakesASubscriberUntilItUnsubscribes) {
  KvEventFeed feed = WithRoomFor(10);
  int wakes = 0;
  const int64_t subscription = feed.Subscribe(0, [&] { ++wakes; }).value();
  AppendNumbers(feed, 0, 2);
  EXPECT_EQ(wakes, 3);
  feed.Unsubscribe(subscription);
  feed.Unsubscribe(subscription);
  AppendNumbers(feed, 3, 3);
  EXPECT_EQ(wakes, 3);
  EXPECT_EQ(feed.Next(subscription).value(), nullptr);
}

TEST_F(KvEventFeedTest, CloseEndsASubscriptionAfterItsLastBatch) {
  KvEventFeed feed = WithRoomFor(10);
  int wakes = 0;
  const int64_t subscription = feed.Subscribe(0, [&] { ++wakes; }).value();
  AppendNumbers(feed, 0, 0);
  feed.Close();
  EXPECT_EQ(wakes, 2);
  EXPECT_THAT(Numbers(feed, subscription), ElementsAre(0));
  EXPECT_EQ(feed.Next(subscription).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace diffserve
