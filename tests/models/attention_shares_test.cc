// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/attention_shares.h"

#include <gtest/gtest.h>

#include <cmath>

namespace diffserve {
namespace {

AttentionMaps MapsOf(std::vector<double> p1, std::vector<double> p2, double lambda) {
  AttentionMaps maps;
  maps.w = maps.first.p = std::move(p1);
  maps.second.p = std::move(p2);
  maps.lambda = lambda;
  for (size_t i = 0; i < maps.second.p.size(); ++i) maps.w[i] -= lambda * maps.second.p[i];
  return maps;
}

TEST(AttentionSharesTest, EntropyIsZeroForOneSlotAndLogNForNEqualSlots) {
  EXPECT_EQ(Entropy({1, 0, 0}), 0);
  EXPECT_NEAR(Entropy({0.25, 0.25, 0.25, 0.25}), std::log(4), 1e-15);
  EXPECT_TRUE(std::isnan(Entropy({NAN, 1})));
}

TEST(AttentionSharesTest, CancelledMassIsAtMostThatOfMapOne) {
  // The difference removes all of map 1's mass in the first slot, and half of it in the second.
  EXPECT_NEAR(CancelledShare(MapsOf({0.2, 0.8}, {0.5, 0.5}, 0.8)), 0.2 + 0.4, 1e-15);
  EXPECT_NEAR(CancelledShare(MapsOf({0.2, 0.8}, {0.2, 0.8}, 1)), 1, 1e-15);
}

TEST(AttentionSharesTest, NegativeLambdaOrASingleMapCancelsNothing) {
  EXPECT_EQ(CancelledShare(MapsOf({0.2, 0.8}, {0.5, 0.5}, -0.5)), 0);
  EXPECT_EQ(CancelledShare(MapsOf({0.2, 0.8}, {}, 0)), 0);
}

TEST(AttentionSharesTest, ShareOfASpanUsesTheMagnitudeOfTheDifference) {
  const AttentionMaps maps = MapsOf({0.1, 0.6, 0.3}, {0.5, 0.25, 0.25}, 0.8);
  // The difference: -0.3, 0.4, 0.1.
  const SpanShares shares = SharesOn(maps, 0, 2);
  EXPECT_NEAR(shares.map1, 0.7, 1e-15);
  EXPECT_NEAR(shares.map2, 0.75, 1e-15);
  EXPECT_NEAR(shares.difference, 0.7 / 0.8, 1e-15);
  EXPECT_NEAR(SharesOn(maps, 2, 9).map1, 0.3, 1e-15);
  EXPECT_EQ(SharesOn(maps, 3, 9).difference, 0);
}

TEST(AttentionSharesTest, ZeroDifferenceHasNoShareOnTheSpan) {
  EXPECT_EQ(SharesOn(MapsOf({0.5, 0.5}, {0.5, 0.5}, 1), 0, 2).difference, 0);
}

}  // namespace
}  // namespace diffserve
