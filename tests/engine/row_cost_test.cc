// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/row_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace diffserve {
namespace {

double CostOf(const RowCostMeter& meter, size_t rows) { return (*meter.costs())[rows]; }

TEST(RowCostTest, NothingIsKnownBeforeAStepOfFewRows) {
  RowCostMeter meter;
  EXPECT_FALSE(meter.costs().has_value());
  meter.Take(9, 1);
  EXPECT_FALSE(meter.costs().has_value());
}

TEST(RowCostTest, LearnsACurveThatIsNotALine) {
  RowCostMeter meter;
  const auto seconds = [](int rows) { return rows <= 5 ? 1.0 : 1.6; };
  for (int i = 0; i < 400; ++i) meter.Take(1 + i % 8, seconds(1 + i % 8));
  for (size_t rows = 1; rows <= 8; ++rows)
    EXPECT_NEAR(CostOf(meter, rows), seconds(static_cast<int>(rows)), 0.1) << rows;
}

TEST(RowCostTest, SizesThatWereNotMeasuredFollowFromTheOneThatWas) {
  RowCostMeter meter;
  for (int i = 0; i < 100; ++i) meter.Take(4, 12);
  for (size_t rows = 1; rows <= 8; ++rows)
    EXPECT_NEAR(CostOf(meter, rows), 12 * (31.0 + static_cast<double>(rows)) / 35, 1e-6) << rows;
}

TEST(RowCostTest, MoreRowsNeverCostLess) {
  RowCostMeter meter;
  for (int i = 0; i < 100; ++i) meter.Take(1 + i % 8, 1 + 0.3 * ((i * 7) % 5));
  const RowCosts costs = *meter.costs();
  EXPECT_TRUE(std::ranges::is_sorted(costs));
  EXPECT_GT(costs[1], 1);
}

TEST(RowCostTest, RowsBetweenTwoEqualSizesCostHardlyMore) {
  RowCostMeter meter;
  for (int i = 0; i < 200; ++i) meter.Take(i % 2 == 0 ? 1 : 8, 1);
  EXPECT_LT(CostOf(meter, 4), 1.2);
}

TEST(RowCostTest, OneInterruptedStepChangesLittle) {
  RowCostMeter meter;
  for (int i = 0; i < 100; ++i) meter.Take(1, 1);
  const double before = CostOf(meter, 3);
  meter.Take(3, 50);
  EXPECT_LT(CostOf(meter, 3), 1.15 * before);
}

TEST(RowCostTest, SizeThatSeemedExpensiveIsForgotten) {
  RowCostMeter meter;
  for (int i = 0; i < 50; ++i) meter.Take(1, 1);
  const double before = CostOf(meter, 2);
  for (int i = 0; i < 50; ++i) meter.Take(2, 3);
  EXPECT_GT(CostOf(meter, 2), 2);
  for (int i = 0; i < 2000; ++i) meter.Take(1, 1);
  EXPECT_LT(CostOf(meter, 2), 1.1 * before);
}

}  // namespace
}  // namespace diffserve
