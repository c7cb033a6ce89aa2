// SPDX-License-Identifier: Apache-2.0
// The store of responses: what it keeps, for which client, and what it evicts first.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/api/responses/encoder.h"
#include "server/api/responses/store.h"

namespace diffserve {
namespace {

std::shared_ptr<ResponseObject> Object(const std::string& id, size_t text_bytes = 0) {
  auto object = std::make_shared<ResponseObject>();
  object->id = id;
  object->echo = std::make_shared<const std::string>();
  if (text_bytes > 0) object->items.emplace_back().text.assign(text_bytes, 'x');
  return object;
}

StoredResponse Stored(const std::string& id, size_t text_bytes = 0) {
  return {Object(id, text_bytes), std::make_shared<const ResponseInput>()};
}

TEST(ResponsesStoreTest, ResponseIsVisibleOnlyToItsClient) {
  ResponsesStore store({});
  store.Insert("a", Stored("r1"));
  EXPECT_TRUE(store.Find("a", "r1"));
  EXPECT_FALSE(store.Find("b", "r1"));
  EXPECT_FALSE(store.Find("a", "r2"));
  EXPECT_FALSE(store.Erase("b", "r1"));
  EXPECT_TRUE(store.Erase("a", "r1"));
  EXPECT_FALSE(store.Find("a", "r1"));
  EXPECT_EQ(store.entries(), 0u);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponsesStoreTest, EvictsTheResponseThatWasUnusedForLongest) {
  ResponsesStore store({.max_entries = 2});
  store.Insert("a", Stored("r1"));
  store.Insert("a", Stored("r2"));
  EXPECT_TRUE(store.Find("a", "r1"));
  store.Insert("a", Stored("r3"));
  EXPECT_TRUE(store.Find("a", "r1"));
  EXPECT_FALSE(store.Find("a", "r2"));
  EXPECT_TRUE(store.Find("a", "r3"));
}

TEST(ResponsesStoreTest, ClientAboveItsShareEvictsItsOwn) {
  ResponsesStore store({.max_entries = 100, .max_bytes = 64 << 10});
  store.Insert("small", Stored("s"));
  for (int i = 0; i < 20; ++i) store.Insert("large", Stored("r" + std::to_string(i), 10'000));
  EXPECT_TRUE(store.Find("small", "s"));
  EXPECT_FALSE(store.Find("large", "r0"));
  EXPECT_TRUE(store.Find("large", "r19"));
  EXPECT_LE(store.bytes(), size_t{64} << 10);
}

TEST(ResponsesStoreTest, ResponseLargerThanTheStoreIsNotKept) {
  ResponsesStore store({.max_entries = 4, .max_bytes = 4096});
  store.Insert("a", Stored("r1", 5000));
  EXPECT_FALSE(store.Find("a", "r1"));
  ResponsesStore none({.max_entries = 0});
  none.Insert("a", Stored("r1"));
  EXPECT_EQ(none.entries(), 0u);
}

TEST(ResponsesStoreTest, ResponseEndsOnceAndItsGrowthCounts) {
  ResponsesStore store({.max_entries = 4, .max_bytes = 8192});
  store.Insert("a", Stored("r1"));
  const size_t before = store.bytes();
  auto ended = Object("r1", 1000);
  ended->state = ResponseState::kCancelled;
  EXPECT_TRUE(store.Finish("a", ended));
  EXPECT_GE(store.bytes(), before + 1000);
  EXPECT_FALSE(store.Finish("a", Object("r1"))) << "it has ended";
  EXPECT_FALSE(store.Finish("a", Object("r2"))) << "there is none";
  EXPECT_EQ(store.Find("a", "r1")->object->state, ResponseState::kCancelled);
}

TEST(ResponsesStoreTest, OnlyResponsesInProgressAreDropped) {
  ResponsesStore store({});
  store.Insert("a", Stored("r1"));
  store.Insert("a", Stored("r2"));
  auto ended = Object("r2");
  ended->state = ResponseState::kCompleted;
  EXPECT_TRUE(store.Finish("a", ended));
  for (const char* id : {"r1", "r2", "r3"}) store.Drop("a", id);
  EXPECT_FALSE(store.Find("a", "r1"));
  EXPECT_TRUE(store.Find("a", "r2"));
}

}  // namespace
}  // namespace diffserve
