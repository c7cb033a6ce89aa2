// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/magnitudes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace diffserve {
namespace {

// Numbers of both signs, over many octaves, with repeats.
std::vector<float> Numbers(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> exponents(0.0f, 3.0f);
  std::vector<float> numbers;
  while (numbers.size() < count) {
    const float number = std::exp2(exponents(random));
    numbers.insert(numbers.end(), {number, -number, number});
  }
  return numbers;
}

std::vector<float> SortedMagnitudes(std::vector<float> numbers) {
  for (float& number : numbers) number = std::abs(number);
  std::ranges::sort(numbers);
  return numbers;
}

TEST(MagnitudesTest, LargestAreExactAndQuantilesWithinAFifthOfAPercent) {
  const std::vector<float> numbers = Numbers(30'000);
  const std::vector<float> sorted = SortedMagnitudes(numbers);
  Magnitudes magnitudes;
  magnitudes.Add(numbers);
  EXPECT_EQ(magnitudes.count(), static_cast<int64_t>(numbers.size()));
  for (int rank : {1, 2, 3, 10, 99, 100})
    EXPECT_EQ(magnitudes.Top(rank), sorted[sorted.size() - static_cast<size_t>(rank)]) << rank;
  for (double share : {0.001, 0.1, 0.5, 0.9, 1.0}) {
    const double rank = std::ceil(share * static_cast<double>(sorted.size()));
    const double exact = static_cast<double>(sorted[static_cast<size_t>(rank) - 1]);
    EXPECT_NEAR(magnitudes.Quantile(share) / exact, 1, 1.0 / 512) << share;
  }
}

TEST(MagnitudesTest, OrderOfPartsDoesNotMatter) {
  const std::vector<float> numbers = Numbers(3'000);
  Magnitudes whole, parts[3], merged;
  whole.Add(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) parts[i % 7 % 3].Add({&numbers[i], 1});
  for (int part : {2, 0, 1}) merged.Merge(parts[part]);
  EXPECT_EQ(merged.count(), whole.count());
  for (int rank = 1; rank <= Magnitudes::kTop; ++rank) EXPECT_EQ(merged.Top(rank), whole.Top(rank));
  for (double share : {0.1, 0.5, 0.9}) EXPECT_EQ(merged.Quantile(share), whole.Quantile(share));
}

TEST(MagnitudesTest, FewNumbersHaveNoHundredth) {
  Magnitudes magnitudes;
  EXPECT_TRUE(std::isnan(magnitudes.Quantile(0.5)));
  const float numbers[] = {-3.0f, 1.0f, 2.0f};
  magnitudes.Add(numbers);
  EXPECT_EQ(magnitudes.Top(1), 3.0f);
  EXPECT_EQ(magnitudes.Top(3), 1.0f);
  EXPECT_TRUE(std::isnan(magnitudes.Top(4)));
  EXPECT_NEAR(magnitudes.Quantile(0.5), 2.0, 2.0 / 256);
}

TEST(MagnitudesTest, ZerosAndLargeNumbersCountAndNonFiniteOnesDoNot) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  const float numbers[] = {0.0f,  -0.0f,     1e-30f,     kMax,
                           -kMax, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  Magnitudes magnitudes;
  magnitudes.Add(numbers);
  EXPECT_EQ(magnitudes.count(), 5);
  EXPECT_EQ(magnitudes.num_not_finite(), 3);
  EXPECT_EQ(magnitudes.Quantile(0.5), 0);
  EXPECT_EQ(magnitudes.Top(1), kMax);
  EXPECT_EQ(magnitudes.Top(3), 1e-30f);
  EXPECT_NEAR(magnitudes.Quantile(1), std::ldexp(1.0, 40), std::ldexp(1.0, 32))
      << "the last bin's middle";
  Magnitudes other;
  other.Merge(magnitudes);
  EXPECT_EQ(other.num_not_finite(), 3);
  EXPECT_EQ(other.Quantile(0.5), 0);
}

}  // namespace
}  // namespace diffserve
