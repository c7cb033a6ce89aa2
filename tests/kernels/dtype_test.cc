// SPDX-License-Identifier: Apache-2.0
// 16-bit and 8-bit floats against their definition.
#include "kernels/base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace diffserve {
namespace {

double Float16ByDefinition(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double magnitude = exponent == 0x1f ? std::numeric_limits<double>::infinity()
                           : exponent == 0  ? std::ldexp(mantissa, -24)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool IsNan(uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }

TEST(DTypeTest, EveryFloat16HasTheValueOfItsBitsAndRoundTrips) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    if (IsNan(bits)) {
      ASSERT_TRUE(std::isnan(Float16ToFloat(bits))) << i;
      ASSERT_TRUE(IsNan(FloatToFloat16(Float16ToFloat(bits)))) << i;
    } else {
      ASSERT_EQ(double{Float16ToFloat(bits)}, Float16ByDefinition(bits)) << i;
      ASSERT_EQ(FloatToFloat16(Float16ToFloat(bits)), bits) << i;
    }
  }
}

TEST(DTypeTest, FloatBecomesTheNearestFloat16WithTiesToEven) {
  for (uint16_t bits = 0; bits < 0x7c00; ++bits) {
    // Half-way to the next number; after the largest, half-way to where the next would be.
    const double below = Float16ByDefinition(bits);
    const double above = bits == 0x7bff ? 65536.0 : Float16ByDefinition(bits + 1);
    const float middle = static_cast<float>((below + above) / 2);
    for (uint16_t sign : {0x0000, 0x8000}) {
      const float signed_middle = sign == 0 ? middle : -middle;
      ASSERT_EQ(FloatToFloat16(signed_middle), sign | (bits + (bits & 1))) << bits;
      ASSERT_EQ(FloatToFloat16(std::nextafter(signed_middle, 0.0f)), sign | bits) << bits;
      ASSERT_EQ(FloatToFloat16(std::nextafter(signed_middle, 2 * signed_middle)), sign | (bits + 1))
          << bits;
    }
  }
  EXPECT_EQ(FloatToFloat16(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(FloatToFloat16(kFloat16Max), 0x7bff);
  EXPECT_EQ(FloatToFloat16(kFloat16Overflow), 0x7c00);
  EXPECT_EQ(FloatToFloat16(std::nextafter(kFloat16Overflow, 0.0f)), 0x7bff);
}

double Fp8E4M3ByDefinition(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3 & 0xf), mantissa = static_cast<int>(bits & 7);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9)
                                         : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(DTypeTest, EveryFp8E4M3HasTheValueOfItsBitsAndRoundTrips) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const float value = Fp8E4M3ToFloat(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(double{value}, Fp8E4M3ByDefinition(bits)) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 0x80) << bits;
    }
    EXPECT_EQ(FloatToFp8E4M3(value), bits);
  }
}

// The oracle tries every code. Inputs: floats of every exponent, and numbers at and beside each
// midpoint.
TEST(DTypeTest, FloatBecomesTheNearestFp8E4M3WithTiesToEven) {
  const auto nearest = [](double value) {
    uint32_t best = 0;
    for (uint32_t code = 1; code < 0x7f; ++code) {
      const double nearer = std::abs(Fp8E4M3ByDefinition(best) - value) -
                            std::abs(Fp8E4M3ByDefinition(code) - value);
      if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
    }
    return best;
  };
  std::vector<float> values;
  for (uint32_t exponent = 1; exponent < 0xff; ++exponent) {
    for (uint32_t mantissa = 0; mantissa < 0x800000; mantissa += 0x24ced)
      values.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
  }
  for (uint32_t code = 0; code < 0x7e; ++code) {
    const double middle = (Fp8E4M3ByDefinition(code) + Fp8E4M3ByDefinition(code + 1)) / 2;
    const float at = static_cast<float>(middle);
    values.insert(values.end(), {at, std::nextafter(at, 0.0f), std::nextafter(at, 1e9f)});
  }
  values.insert(values.end(), {0.0f, 464.0f, 480.0f, std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::infinity()});
  for (float value : values) {
    const uint32_t expected = nearest(std::min(double{value}, 1e9));
    ASSERT_EQ(FloatToFp8E4M3(value), expected) << value;
    ASSERT_EQ(FloatToFp8E4M3(-value), expected | 0x80) << value;
  }
}

TEST(DTypeTest, FloatBecomesTheNearestBFloat16AndNanStaysNan) {
  EXPECT_EQ(FloatToBFloat16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a midpoint: to even
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace diffserve
