// SPDX-License-Identifier: Apache-2.0
// The definitions of quantised attention logits, checked by hand.
#include "kernels/attention/logit_quant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace diffserve {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

std::vector<double> Quantised(std::vector<double> logits, const LogitQuant& quant) {
  QuantiseLogitsRef(logits, quant);
  return logits;
}

TEST(LogitQuantTest, LevelsAreSymmetricButForTheAnchored) {
  EXPECT_EQ((LogitQuant{8, LogitScale::kRow}.levels()), 127);
  EXPECT_EQ((LogitQuant{6, LogitScale::kTile}.levels()), 31);
  EXPECT_EQ((LogitQuant{4, LogitScale::kRow}.levels()), 7);
  EXPECT_EQ((LogitQuant{4, LogitScale::kAnchored}.levels()), 15);
}

TEST(LogitQuantTest, WithoutBitsNothingChanges) {
  EXPECT_THAT(Quantised({0.3, -7.1}, {}), ElementsAre(0.3, -7.1));
}

TEST(LogitQuantTest, RowIsRoundedToTheNearestLevelWithTiesToEven) {
  const LogitQuant quant = {4, LogitScale::kRow};
  EXPECT_THAT(Quantised({7, 3.4, -7, 0.5, 1.5, -2.5}, quant), ElementsAre(7, 3, -7, 0, 2, -2));
  EXPECT_THAT(Quantised({-14, 3}, quant), ElementsAre(-14, 4)) << "1.5 levels of 2";
  EXPECT_THAT(Quantised({0, 0}, quant), ElementsAre(0, 0));
}

TEST(LogitQuantTest, EachTileOfSixtyFourSlotsHasItsOwnScale) {
  std::vector<double> logits(66, 0.6);
  logits[3] = 7;
  logits[64] = 0.7;
  const std::vector<double> tiles = Quantised(logits, {4, LogitScale::kTile});
  EXPECT_EQ(tiles[0], 1);
  EXPECT_EQ(tiles[3], 7);
  EXPECT_THAT(tiles[64], DoubleEq(0.7));
  EXPECT_THAT(tiles[65], DoubleNear(0.6, 1e-12));
}

TEST(LogitQuantTest, TilesFollowTheSlotsFromWhichLogitsBegin) {
  std::vector<double> logits = {7, 0.6, 0.7, 0.6};
  QuantiseLogitsRef(logits, {4, LogitScale::kTile}, 190);  // slot 192 begins a tile
  EXPECT_THAT(logits, ElementsAre(7, 1, DoubleEq(0.7), DoubleNear(0.6, 1e-12)));
}

TEST(LogitQuantTest, AnchoredCodesCountDownFromTheLargestAndEndAtTheReach) {
  const double step = 16.0 / 15;
  EXPECT_THAT(Quantised({20, 20 - 2.4 * step, -20, 19.9}, {4, LogitScale::kAnchored}),
              Pointwise(DoubleEq(), {20.0, 20 - 2 * step, 4.0, 20.0}));
}

}  // namespace
}  // namespace diffserve
