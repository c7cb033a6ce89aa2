// SPDX-License-Identifier: Apache-2.0
// The shim's tensor cores and approximate functions are no better than what they stand for.
#include "tests/kernels/shim/tensor_core.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "tests/kernels/shim/approximations.h"
#include "tests/kernels/shim/ptx_on_cpu.h"

namespace diffserve::shim {
namespace {

// The first column of a step whose products are factors[k] times 1, added to `sum`.
template <TensorCoreStep kStep>
float Sum(float sum, std::vector<float> factors) {
  factors.resize(kStep.depth);
  const std::vector<float> ones(kStep.depth * kTensorCoreColumns, 1.0f);
  float sums[kTensorCoreColumns] = {sum};
  AddProducts<kStep>(factors.data(), ones.data(), kTensorCoreColumns, sums);
  return sums[0];
}

TEST(TensorCoreTest, BitsBelowTheLargestExponentAreCutOffTowardsZero) {
  EXPECT_EQ(Sum<kHopperFp8Step>(0, {1, 0x1p-6f, 0x1p-7f}), 1 + 0x1p-6f + 0x1p-7f);
  EXPECT_EQ(Sum<kHopperFp8Step>(1, {0x1p-13f}), 1 + 0x1p-13f);
  EXPECT_EQ(Sum<kHopperFp8Step>(1, {0x1p-14f, 0x1p-14f}), 1) << "each is cut off by itself";
  EXPECT_EQ(Sum<kHopperFp8Step>(-1, {0x1p-14f}), -1);
  EXPECT_EQ(Sum<kHopperStep>(1, {0x1p-24f, 0x1p-24f}), 1 + 0x1p-23f) << "float32 would lose both";
  EXPECT_EQ(Sum<kHopperStep>(1, {0x1p-25f, 0x1p-25f, 0x1p-25f}), 1);
  EXPECT_EQ(Sum<kAmpereStep>(1, {0x1p-25f, 0x1p-25f, 0x1p-25f, 0x1p-25f}), 1);
  EXPECT_EQ(Sum<kHopperStep>(1, {0x1p-25f, 0x1p-25f, 0x1p-25f, 0x1p-25f}), 1 + 0x1p-23f);
}

TEST(TensorCoreTest, SumIsCutOffTowardsZero) {
  EXPECT_EQ(Sum<kHopperStep>(1, {1, 0x1p-23f}), 2) << "2 + 2^-23";
  EXPECT_EQ(Sum<kHopperStep>(-1, {-1, -0x1.8p-23f}), -2);
  EXPECT_EQ(Sum<kHopperFp8Step>(1.5f, {1.5f, 0x1p-13f}), 3);
}

TEST(TensorCoreTest, ProductsOfZerosLeaveASumsBitsUnchanged) {
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    const float sum = std::ldexp(static_cast<float>(random() % (1 << 24)), -30);
    EXPECT_EQ(Sum<kHopperStep>(sum, {}), sum);
    EXPECT_EQ(Sum<kAmpereStep>(sum, {}), sum);
  }
}

TEST(TensorCoreTest, SmallestCodesHaveTheExponentOfNormalOnes) {
  // 2^-9 times 1 is aligned as 2^-6 is.
  EXPECT_EQ(Sum<kHopperFp8Step>(0x1p-20f, {0x1p-9f}), 0x1p-9f);
  EXPECT_EQ(Sum<kHopperFp8Step>(0x1p-19f, {0x1p-9f}), 0x1p-9f + 0x1p-19f);
}

TEST(TensorCoreTest, NanAndInfinityReachTheSum) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(Sum<kHopperStep>(1, {std::nanf("")})));
  EXPECT_TRUE(std::isnan(Sum<kHopperStep>(std::nanf(""), {1})));
  EXPECT_TRUE(std::isnan(Sum<kHopperStep>(0, {infinity, -infinity})));
  EXPECT_EQ(Sum<kHopperStep>(0, {infinity, 1}), infinity);
}

// A chain of one product at a time, in numbers that hold everything.
TEST(TensorCoreTest, RandomSumsMatchTheDescription) {
  std::mt19937 random(7);
  const auto number = [&] {
    return BFloat16ToFloat(FloatToBFloat16(
        std::ldexp(static_cast<float>(random() % 2001) - 1000, static_cast<int>(random() % 12))));
  };
  for (int trial = 0; trial < 1000; ++trial) {
    float a[16], b[16 * kTensorCoreColumns], sums[kTensorCoreColumns];
    for (float& x : a) x = number();
    for (float& x : b) x = number();
    for (float& x : sums) x = number() * number();
    double expected[kTensorCoreColumns];
    for (size_t i = 0; i < kTensorCoreColumns; ++i) {
      int largest = sums[i] == 0 ? -100 : std::ilogb(sums[i]);
      for (size_t k = 0; k < 16; ++k) {
        const float factor = b[k * kTensorCoreColumns + i];
        if (a[k] != 0 && factor != 0)
          largest = std::max(largest, std::ilogb(a[k]) + std::ilogb(factor));
      }
      const auto cut = [](double x, int last) {
        return std::ldexp(std::trunc(std::ldexp(x, -last)), last);
      };
      double sum = cut(sums[i], largest - 25);
      for (size_t k = 0; k < 16; ++k)
        sum += cut(double{a[k]} * b[k * kTensorCoreColumns + i], largest - 25);
      expected[i] = sum == 0 ? 0 : cut(sum, std::ilogb(sum) - 23);
    }
    AddProducts<kHopperStep>(a, b, kTensorCoreColumns, sums);
    for (size_t i = 0; i < kTensorCoreColumns; ++i) ASSERT_EQ(double{sums[i]}, expected[i]);
  }
}

TEST(ApproximationsTest, ErrorsReachTheManualsBoundsAndNotMore) {
  double largest_of_exp2 = 0;
  for (int i = 1; i < 4000; ++i) {
    const float x = static_cast<float>(i - 2000) / 37;
    const double exact = std::exp2(double{x});
    largest_of_exp2 = std::max(largest_of_exp2, std::abs(cuda::Exp2(x) - exact) / exact);
    const float positive = std::abs(x) + 0.001f;
    EXPECT_LE(std::abs(double{cuda::Reciprocal(positive)} * positive - 1), 0x1p-23);
    EXPECT_LE(std::abs(double{rsqrtf(positive)} * std::sqrt(double{positive}) - 1), 0x1p-22);
    EXPECT_LE(std::abs(cuda::expf(x) / std::exp(double{x}) - 1), 0x1p-22);
  }
  EXPECT_LE(largest_of_exp2, 0x1p-22);
  EXPECT_GT(largest_of_exp2, 0x1.8p-23);
  EXPECT_EQ(cuda::Exp2(-126.5f), 0.0f) << "subnormal results are flushed";
  EXPECT_EQ(cuda::Exp2(1e-40f), 1.0f);
}

}  // namespace
}  // namespace diffserve::shim
