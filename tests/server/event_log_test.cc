// SPDX-License-Identifier: Apache-2.0
#include "server/api/event_log.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace diffserve {
namespace {

using Found = EventLog::Found;

std::string Event(const std::string& data) { return "event: e\ndata: " + data + "\n\n"; }

std::string WithId(int number, const std::string& data) {
  return "id: s:" + std::to_string(number) + "\n" + Event(data);
}

// All bytes after an event, or why they are missing.
std::string After(const EventLog& log, uint64_t number) {
  std::string out;
  switch (log.AppendAfter(number, &out)) {
    case Found::kKept:
      return out;
    case Found::kOutgrown:
      return "outgrown" + out;
    case Found::kUnknown:
      return "unknown" + out;
  }
  return "";
}

TEST(EventLogTest, EventNumbersAreIndependentOfTheCuts) {
  const std::string stream = Event("a") + Event("b") + Event("c");
  const std::string expected = WithId(1, "a") + WithId(2, "b") + WithId(3, "c");
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    EventLog log("s", 1000);
    std::string out;
    for (size_t at = 0; at < stream.size(); at += piece)
      log.Append(std::string_view(stream).substr(at, piece), &out);
    EXPECT_EQ(out, expected) << piece;
    EXPECT_EQ(log.last(), 3u);
    EXPECT_EQ(After(log, 0), expected);
  }
}

TEST(EventLogTest, EventsAfterAnIdAreReplayed) {
  EventLog log("s", 1000);
  std::string out;
  log.Append(Event("a") + Event("b") + Event("c"), &out);
  EXPECT_EQ(After(log, 1), WithId(2, "b") + WithId(3, "c"));
  EXPECT_EQ(After(log, 2), WithId(3, "c"));
  EXPECT_EQ(After(log, 3), "");
  EXPECT_EQ(After(log, 4), "unknown");
  EXPECT_EQ(After(log, ~uint64_t{0}), "unknown");
}

TEST(EventLogTest, PartialEventIsReplayedAsFarAsReceived) {
  EventLog log("s", 1000);
  std::string out;
  log.Append(Event("a") + "data: ha", &out);
  EXPECT_EQ(After(log, 1), "id: s:2\ndata: ha");
  EXPECT_EQ(After(log, 2), "unknown") << "event 2 is not complete";
  log.Append("lf\n\n", &out);
  EXPECT_EQ(After(log, 1), "id: s:2\ndata: half\n\n");
}

TEST(EventLogTest, OldestEventsAreDroppedAtTheLimit) {
  const size_t size = WithId(1, "a").size();
  EventLog log("s", 2 * size);
  std::string out;
  for (const char* data : {"a", "b", "c"}) {
    log.Append(Event(data), &out);
    EXPECT_LE(log.held_bytes(), 2 * size);
  }
  EXPECT_EQ(out, WithId(1, "a") + WithId(2, "b") + WithId(3, "c"));
  EXPECT_EQ(After(log, 1), WithId(2, "b") + WithId(3, "c"));
  EXPECT_EQ(After(log, 0), "outgrown");
}

TEST(EventLogTest, EventLargerThanTheLimitIsSentAndNotKept) {
  EventLog log("s", 100);
  std::string out;
  log.Append(Event("a"), &out);
  const std::string giant = Event(std::string(500, 'g'));
  log.Append(std::string_view(giant).substr(0, 300), &out);
  EXPECT_EQ(log.held_bytes(), 0u);
  EXPECT_EQ(After(log, 1), "outgrown");
  log.Append(std::string_view(giant).substr(300), &out);
  EXPECT_EQ(out, WithId(1, "a") + "id: s:2\n" + giant);
  EXPECT_EQ(After(log, 1), "outgrown");
  EXPECT_EQ(After(log, 2), "");
  log.Append(Event("c"), &out);
  EXPECT_EQ(After(log, 2), WithId(3, "c"));
  EXPECT_EQ(After(log, 1), "outgrown");
}

TEST(EventLogTest, EventIdIsAStreamAndANumber) {
  EXPECT_EQ(ParseEventId("abc:12")->stream, "abc");
  EXPECT_EQ(ParseEventId("abc:12")->number, 12u);
  EXPECT_EQ(ParseEventId("a:b:3")->stream, "a:b");
  for (const char* const text :
       {"", "abc", ":1", "abc:", "abc:x", "abc:1x", "abc:-1", "abc: 1", "abc:99999999999999999999"})
    EXPECT_FALSE(ParseEventId(text).has_value()) << text;
  EXPECT_FALSE(ParseEventId(std::string(100, 'a') + ":1").has_value());
}

}  // namespace
}  // namespace diffserve
