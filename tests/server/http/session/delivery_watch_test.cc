// SPDX-License-Identifier: Apache-2.0
#include "server/http/session/delivery_watch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace diffserve {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStallTimeout{1000};

class DeliveryWatchTest : public ::testing::Test {
 protected:
  DeliveryWatchTest() { watch_.Begin(At(0)); }

  static DeliveryWatch::TimePoint At(int ms) {
    return DeliveryWatch::TimePoint() + std::chrono::hours(1) + milliseconds(ms);
  }

  DeliveryWatch watch_{kStallTimeout};
};

TEST_F(DeliveryWatchTest, PeerThatTakesNothingIsStalledAfterTheWholeTimeout) {
  watch_.Add(100);
  EXPECT_FALSE(watch_.IsStalled(100, At(500)));
  EXPECT_FALSE(watch_.IsStalled(100, At(999)));
  EXPECT_TRUE(watch_.IsStalled(100, At(1000)));
}

TEST_F(DeliveryWatchTest, EachByteThatThePeerTakesStartsTheTimeAnew) {
  watch_.Add(100);
  EXPECT_FALSE(watch_.IsStalled(99, At(900)));
  EXPECT_FALSE(watch_.IsStalled(99, At(1899)));
  EXPECT_TRUE(watch_.IsStalled(99, At(1900)));
}

// Undelivered bytes stay the same in number: as many were acknowledged as were given.
TEST_F(DeliveryWatchTest, FurtherBytesDoNotHideThatThePeerTakesSome) {
  watch_.Add(100);
  EXPECT_FALSE(watch_.IsStalled(100, At(900)));
  watch_.Add(50);
  EXPECT_FALSE(watch_.IsStalled(100, At(1800)));
  EXPECT_FALSE(watch_.IsStalled(100, At(2799)));
}

TEST_F(DeliveryWatchTest, FurtherBytesAloneAreNoDelivery) {
  watch_.Add(100);
  EXPECT_FALSE(watch_.IsStalled(100, At(900)));
  watch_.Add(50);
  EXPECT_TRUE(watch_.IsStalled(150, At(1000)));
}

TEST_F(DeliveryWatchTest, NewWatchGivesTheWholeTime) {
  watch_.Add(100);
  EXPECT_TRUE(watch_.IsStalled(100, At(5000)));
  watch_.Begin(At(5000));
  EXPECT_FALSE(watch_.IsStalled(100, At(5999)));
  EXPECT_TRUE(watch_.IsStalled(100, At(6000)));
}

TEST(UndeliveredBytesTest, CountsWhatThePeerHasNotRead) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_EQ(UndeliveredBytes(ends[0]), 0u);
  const std::string text(1000, 'x');
  ASSERT_EQ(write(ends[0], text.data(), text.size()), 1000);
  EXPECT_GE(UndeliveredBytes(ends[0]), 1000u);  // a Unix socket counts its buffers too
  std::string read_text(1000, ' ');
  ASSERT_EQ(read(ends[1], read_text.data(), read_text.size()), 1000);
  EXPECT_EQ(UndeliveredBytes(ends[0]), 0u);
  close(ends[0]);
  EXPECT_EQ(UndeliveredBytes(ends[0]), 0u) << "no socket";
  close(ends[1]);
}

}  // namespace
}  // namespace diffserve
