// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/seat_forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

namespace diffserve {
namespace {

TEST(SeatForecastTest, SequencesThatNeverStopEndWithTheirLastToken) {
  const SeatForecast forecast({30, 10, 20}, 0, {.max_tokens = 100, .stop_chance = 0});
  EXPECT_EQ(forecast.seats(), 3);
  EXPECT_EQ(forecast.TokensUntilStart(0), 10);
  EXPECT_EQ(forecast.TokensUntilStart(1), 20);
  EXPECT_EQ(forecast.TokensUntilStart(2), 30);
}

TEST(SeatForecastTest, ThoseThatFollowEndInTheSameOrder) {
  const SeatForecast forecast({30, 10, 20}, 0, {.max_tokens = 100, .stop_chance = 0});
  EXPECT_EQ(forecast.TokensUntilStart(3), 110);
  EXPECT_EQ(forecast.TokensUntilStart(5), 130);
  EXPECT_EQ(forecast.TokensUntilStart(3000 + 1), 100 * 1000 + 20);
}

TEST(SeatForecastTest, FreeSeatsAreTakenFirst) {
  const SeatForecast forecast({30}, 2, {.max_tokens = 100, .stop_chance = 0});
  EXPECT_EQ(forecast.seats(), 3);
  EXPECT_EQ(forecast.TokensUntilStart(1), 0);
  EXPECT_EQ(forecast.TokensUntilStart(2), 30);
  EXPECT_EQ(forecast.TokensUntilStart(3), 100);
  EXPECT_EQ(forecast.TokensUntilStart(5), 130);
}

TEST(SeatForecastTest, SequencesThatStopEndAtASteadyRate) {
  const SeatForecast forecast({5000, 9000}, 0, {.max_tokens = 9000, .stop_chance = 1.0 / 50});
  for (const int ahead : {0, 1, 9, 399})
    EXPECT_NEAR(forecast.TokensUntilStart(ahead), 25 * (ahead + 1), 1);
}

// Sequences that stop or reach their last token, against the mean of many random runs.
TEST(SeatForecastTest, AgreesWithRandomRuns) {
  constexpr int kMax = 60, kRuns = 400;
  constexpr double kStop = 0.01;
  const std::vector<int> left = {3, 11, 20, 34, 41, 55, 57, 60};
  const SeatForecast forecast(left, 0, {.max_tokens = kMax, .stop_chance = kStop});
  std::mt19937 random(1);
  std::geometric_distribution<> tokens_before_stop(kStop);
  for (const int ends : {1, 4, 9, 16, 40}) {
    double sum = 0;
    for (int run = 0; run < kRuns; ++run) {
      std::multiset<int> seats;  // when they come free
      for (const int most : left) seats.insert(std::min(most, 1 + tokens_before_stop(random)));
      for (int i = 1; i < ends; ++i) {
        const int at = seats.extract(seats.begin()).value();
        seats.insert(at + std::min(kMax, 1 + tokens_before_stop(random)));
      }
      sum += *seats.begin();
    }
    EXPECT_NEAR(forecast.TokensUntilStart(ends - 1), sum / kRuns, 4) << ends;
  }
}

}  // namespace
}  // namespace diffserve
