// SPDX-License-Identifier: Apache-2.0
// Every function of ptx.cuh, once, against the PTX manual: on a GPU the instruction itself, on the
// shim its replacement, so that both pass the same tests.
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/cuda/device_array.h"
#include "tests/cuda/ptx_cuda.h"
#include "tests/testing/kernels/kernel_levels.h"

namespace diffserve {
namespace {

using testing::DeviceArray;
using testing::IsOk;

class PtxTest : public testing::OnDeviceTest {
 protected:
  // The launch's output, which held a pattern before.
  template <typename Out, typename In, typename Launch>
  std::vector<Out> Run(const std::vector<In>& input, size_t count, Launch launch) {
    const DeviceArray<In> from(input, *stream_);
    const DeviceArray<Out> to(std::vector<Out>(count, Out{77}), *stream_);
    EXPECT_TRUE(IsOk(launch(from.data(), to.data(), stream_->handle())));
    return to.Read(*stream_);
  }
};

std::vector<uint32_t> Numbers(size_t count) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1000u);
  return numbers;
}

TEST_F(PtxTest, LdMatrixGivesEachLaneTwoNeighboursOfARowOrOfAColumn) {
  std::vector<uint16_t> matrices(256);
  std::iota(matrices.begin(), matrices.end(), uint16_t{1});
  for (bool transposed : {false, true}) {
    const std::vector<uint32_t> fragments = Run<uint32_t>(matrices, 128, [&](auto... arguments) {
      return testing::RunLdMatrix(transposed, arguments...);
    });
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        uint32_t expected = 0;
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4, column = lane % 4 * 2 + half;
          const int at = matrix * 64 + (transposed ? column * 8 + row : row * 8 + column);
          expected |= uint32_t{matrices[static_cast<size_t>(at)]} << (16 * half);
        }
        EXPECT_EQ(fragments[static_cast<size_t>(lane * 4 + matrix)], expected)
            << lane << " " << matrix;
      }
    }
  }
}

TEST_F(PtxTest, TransposeMatrixGivesEachLaneTwoNeighboursOfAColumn) {
  const auto pair_of = [](int first, int second) {
    return static_cast<uint32_t>(first) | static_cast<uint32_t>(second) << 16;
  };
  std::vector<uint32_t> from, expected;
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    from.push_back(pair_of(100 * g + 2 * t, 100 * g + 2 * t + 1));
    expected.push_back(pair_of(100 * (2 * t) + g, 100 * (2 * t + 1) + g));
  }
  EXPECT_EQ(Run<uint32_t>(from, 32, testing::RunTransposeMatrix), expected);
}

uint32_t Pair(float low, float high) {
  return uint32_t{FloatToBFloat16(low)} | uint32_t{FloatToBFloat16(high)} << 16;
}

// Integers whose partial sums are all exact. The fragments are those of m16n8k16: a register 2 h +
// i holds A[g + 8 i][8 h + 2 t] and its right neighbour, b register h B[8 h + 2 t][g] and its lower
// one, c register 2 i + e C[g + 8 i][2 t + e].
TEST_F(PtxTest, MmaMultipliesItsFragments) {
  const auto a_of = [](int row, int k) { return static_cast<float>((row * 5 + k * 3) % 7 - 3); };
  const auto b_of = [](int k, int column) {
    return static_cast<float>((k * 2 + column * 9) % 11 - 5);
  };
  std::vector<uint32_t> a, b;
  std::vector<float> c;
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      const int row = g + r % 2 * 8, k = 2 * t + r / 2 * 8;
      a.push_back(Pair(a_of(row, k), a_of(row, k + 1)));
    }
    for (int r = 0; r < 2; ++r)
      b.push_back(Pair(b_of(2 * t + 8 * r, g), b_of(2 * t + 8 * r + 1, g)));
    for (int i = 0; i < 4; ++i) c.push_back(static_cast<float>(100 * lane + i));
  }
  const DeviceArray<uint32_t> device_a(a, *stream_), device_b(b, *stream_);
  const DeviceArray<float> device_c(c, *stream_);
  ASSERT_TRUE(
      IsOk(testing::RunMma(device_a.data(), device_b.data(), device_c.data(), stream_->handle())));
  const std::vector<float> sums = device_c.Read(*stream_);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      float expected = static_cast<float>(100 * lane + i);
      for (int k = 0; k < 16; ++k)
        expected += a_of(lane / 4 + i / 2 * 8, k) * b_of(k, lane % 4 * 2 + i % 2);
      EXPECT_EQ(sums[static_cast<size_t>(lane * 4 + i)], expected) << lane << " " << i;
    }
  }
}

// Every byte matters, signed or unsigned. The fragments are those of m16n8k32: a register 2 h + i
// holds A[g + 8 i][16 h + 4 t] and its three right neighbours, b register h B[16 h + 4 t][g] and
// its three lower ones, c register 2 i + e C[g + 8 i][2 t + e].
TEST_F(PtxTest, MmaInt8MultipliesItsFragments) {
  for (bool turned : {false, true}) {
    const auto a_of = [&](int row, int k) {
      return (row * 41 + k * 59) % 256 - (turned ? 0 : 128);
    };
    const auto b_of = [&](int k, int column) {
      return (k * 37 + column * 101) % 256 - (turned ? 128 : 0);
    };
    const auto quad = [](auto number_of) {
      uint32_t bytes = 0;
      for (int i = 0; i < 4; ++i) bytes |= (static_cast<uint32_t>(number_of(i)) & 0xff) << 8 * i;
      return bytes;
    };
    std::vector<uint32_t> a, b;
    std::vector<int32_t> c;
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int r = 0; r < 4; ++r)
        a.push_back(quad([&](int i) { return a_of(g + r % 2 * 8, 4 * t + r / 2 * 16 + i); }));
      for (int r = 0; r < 2; ++r)
        b.push_back(quad([&](int i) { return b_of(4 * t + 16 * r + i, g); }));
      for (int i = 0; i < 4; ++i) c.push_back(0x4b400000 - 1000 * lane - i);
    }
    const DeviceArray<uint32_t> device_a(a, *stream_), device_b(b, *stream_);
    const DeviceArray<int32_t> device_c(c, *stream_);
    ASSERT_TRUE(IsOk(testing::RunMmaInt8(turned, device_a.data(), device_b.data(), device_c.data(),
                                         stream_->handle())));
    const std::vector<int32_t> sums = device_c.Read(*stream_);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        int32_t expected = 0x4b400000 - 1000 * lane - i;
        for (int k = 0; k < 32; ++k)
          expected += a_of(lane / 4 + i / 2 * 8, k) * b_of(k, lane % 4 * 2 + i % 2);
        EXPECT_EQ(sums[static_cast<size_t>(lane * 4 + i)], expected) << lane << " " << i;
      }
    }
  }
}

TEST_F(PtxTest, CpAsyncGroupsArriveInTheOrderTheyWereCommitted) {
  const std::vector<uint32_t> from = Numbers(256);
  const std::vector<uint32_t> to = Run<uint32_t>(from, 256, testing::RunCpAsync);
  for (size_t i = 0; i < 256; ++i) {
    const size_t group = i / 128, lane = 31 - i % 128 / 4;
    EXPECT_EQ(to[i], from[group * 128 + lane * 4 + i % 4]) << i;
  }
}

TEST_F(PtxTest, BulkCopiesArriveBeforeTheirBarriersPhaseEnds) {
  if (device_.compute_capability / 10 != 9)
    GTEST_SKIP() << device_.name << " takes the code of sm_80, which has no bulk copies";
  const std::vector<uint32_t> from = Numbers(2048);
  EXPECT_EQ(Run<uint32_t>(from, 2048, testing::RunBulkCopy), from);
}

TEST_F(PtxTest, SharedAccessesReadAndWriteWhatTheirAddressesSay) {
  const std::vector<uint32_t> from = Numbers(256);
  const std::vector<uint32_t> to = Run<uint32_t>(from, 256, testing::RunSharedAccess);
  for (size_t i = 0; i < 256; ++i) {
    const size_t other = (i / 4 ^ 1) * 4;
    EXPECT_EQ(to[i], from[other + (i % 4 < 2 ? 2 + i % 4 : 0)]) << i;
  }
}

TEST_F(PtxTest, OneLaneOfEachWarpIsElectedAndTheSameEachTime) {
  if (device_.compute_capability / 10 != 9)
    GTEST_SKIP() << device_.name << " takes the code of sm_80, which elects no lane";
  const DeviceArray<uint32_t> to(std::vector<uint32_t>(128, 77), *stream_);
  ASSERT_TRUE(IsOk(testing::RunElectedLane(to.data(), stream_->handle())));
  const std::vector<uint32_t> elected = to.Read(*stream_);
  for (size_t warp = 0; warp < 2; ++warp) {
    uint32_t count = 0;
    for (size_t i = 32 * warp; i < 32 * (warp + 1); ++i) {
      count += elected[i];
      EXPECT_EQ(elected[i], elected[64 + i]) << i;
    }
    EXPECT_EQ(count, 1u) << warp;
  }
}

TEST_F(PtxTest, NamedBarrierWaitsOnlyForItsWarps) {
  const std::vector<uint32_t> from = Numbers(32);
  EXPECT_EQ(Run<uint32_t>(from, 32, testing::RunNamedBarrier), from);
}

TEST_F(PtxTest, Exp2ReciprocalAndPackBFloat16MatchTheManual) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = {0,      -0.0f, 1,      -1,     infinity,    -infinity,  nan,
                          -126,   127,   128,    -126.5, -130,        -149,       -150,
                          -1e30f, 1e30f, 1e-30f, 1e-40f, 1.00390625f, 1.01171875f};
  const std::vector<float> random = testing::RandomFloats(1024 - x.size(), 1, -100, 100);
  x.insert(x.end(), random.begin(), random.end());
  const DeviceArray<float> from(x, *stream_), exponentials(std::vector<float>(x.size()), *stream_),
      reciprocals(std::vector<float>(x.size()), *stream_);
  const DeviceArray<uint32_t> pairs(std::vector<uint32_t>(x.size()), *stream_);
  ASSERT_TRUE(
      IsOk(testing::RunScalars(from.data(), exponentials.data(), reciprocals.data(), pairs.data(),
                               static_cast<int>(x.size()), stream_->handle())));
  const std::vector<float> values = exponentials.Read(*stream_);
  const std::vector<float> inverses = reciprocals.Read(*stream_);
  const std::vector<uint32_t> packed = pairs.Read(*stream_);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp2(double{x[i]});
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(values[i]));
    } else if (expected < double{std::numeric_limits<float>::min()}) {
      EXPECT_EQ(values[i], 0.0f) << x[i];
    } else if (expected > double{std::numeric_limits<float>::max()}) {
      EXPECT_EQ(values[i], infinity) << x[i];
    } else {
      EXPECT_LE(std::abs(double{values[i]} - expected), std::ldexp(expected, -22)) << x[i];
    }
    if (std::abs(x[i]) >= 0x1p-126f && std::abs(x[i]) <= 0x1p126f) {
      EXPECT_LE(std::abs(double{inverses[i]} * double{x[i]} - 1), std::ldexp(1, -22)) << x[i];
    }
    if (x[i] == 0) {
      EXPECT_EQ(values[i], 1.0f);
    }
    for (int half = 0; half < 2; ++half) {
      const float source = x[i ^ static_cast<size_t>(half)];
      const uint16_t bits = static_cast<uint16_t>(packed[i] >> (16 * half));
      if (std::isnan(source)) {
        EXPECT_TRUE(std::isnan(BFloat16ToFloat(bits)));
      } else {
        EXPECT_EQ(bits, FloatToBFloat16(source)) << source;
      }
    }
  }
}

// Fused, the sum would be the product's rounding error.
TEST_F(PtxTest, MulRoundedIsNotFusedWithTheAdditionAfterIt) {
  const std::vector<float> x = testing::RandomFloats(256, 2), y = testing::RandomFloats(256, 3);
  std::vector<float> z(256);
  for (size_t i = 0; i < 256; ++i) z[i] = -static_cast<float>(double{x[i]} * double{y[i]});
  const DeviceArray<float> device_x(x, *stream_), device_y(y, *stream_), device_z(z, *stream_);
  const DeviceArray<float> sums(std::vector<float>(256, 77.0f), *stream_);
  ASSERT_TRUE(IsOk(testing::RunMulRounded(device_x.data(), device_y.data(), device_z.data(),
                                          sums.data(), 256, stream_->handle())));
  EXPECT_EQ(sums.Read(*stream_), std::vector<float>(256, 0.0f));
}

// As in widening codes: a whole number below 256, read as bfloat16, is 2^-133 times that number and
// is kept.
TEST_F(PtxTest, FmaBFloat16IsExactWhereItCanBeAndTakesSubnormalNumbers) {
  const auto pair = [](float low, float high) {
    return FloatToBFloat16(low) | static_cast<uint32_t>(FloatToBFloat16(high)) << 16;
  };
  std::vector<uint32_t> x, y, z, expected;
  for (uint32_t zero = 0; zero < 256; ++zero) {
    for (uint32_t code = 0; code < 16; ++code) {
      x.push_back(code | (15 - code) << 16);
      y.push_back(pair(0x1p127f, 0x1p127f));
      z.push_back(pair(-0x1p-10f * static_cast<float>(zero), 0));
      const float low = 16.0f * static_cast<float>(code) - static_cast<float>(zero);
      expected.push_back(pair(0x1p-10f * low, 0x1p-6f * static_cast<float>(15 - code)));
    }
  }
  for (uint32_t number = 0; number < 256; ++number) {
    x.push_back(number | number << 16);
    y.push_back(pair(-0x1p123f, 0x1p123f));
    z.push_back(0);
    expected.push_back(
        pair(-0x1p-10f * static_cast<float>(number), 0x1p-10f * static_cast<float>(number)));
  }
  const DeviceArray<uint32_t> device_x(x, *stream_), device_y(y, *stream_), device_z(z, *stream_);
  const DeviceArray<uint32_t> sums(std::vector<uint32_t>(x.size(), 77), *stream_);
  ASSERT_TRUE(
      IsOk(testing::RunFmaBFloat16(device_x.data(), device_y.data(), device_z.data(), sums.data(),
                                   static_cast<int>(x.size()), stream_->handle())));
  const std::vector<uint32_t> found = sums.Read(*stream_);
  for (size_t i = 0; i < found.size(); ++i) {
    for (int half = 0; half < 2; ++half) {
      EXPECT_EQ(BFloat16ToFloat(static_cast<uint16_t>(found[i] >> (16 * half))),
                BFloat16ToFloat(static_cast<uint16_t>(expected[i] >> (16 * half))))
          << x[i] << ", " << z[i];  // including -0
    }
  }
}

// Each code, halves between two codes, and what is next to them; and what lies beyond.
TEST_F(PtxTest, PackFp8E4M3RoundsLikeTheDefinition) {
  std::vector<float> x = {0.0f,     -0.0f,  0x1p-11f, 448.0f,
                          464.0f,   465.0f, 1e30f,    std::numeric_limits<float>::infinity(),
                          0x1p-149f};
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float number = Fp8E4M3ToFloat(code),
                half = (number + Fp8E4M3ToFloat(static_cast<uint8_t>(code + 1))) / 2;
    for (float at : {number, std::nextafter(half, 0.0f), half, std::nextafter(half, 1e9f)})
      x.push_back(at);
  }
  while (x.size() % 64 != 0) x.push_back(1.0f);
  std::vector<float> y(x.rbegin(), x.rend());
  for (float& value : y) value = -value;
  const DeviceArray<float> device_x(x, *stream_), device_y(y, *stream_);
  const DeviceArray<uint32_t> codes(std::vector<uint32_t>(x.size(), 77), *stream_);
  ASSERT_TRUE(IsOk(testing::RunPackFp8E4M3(device_x.data(), device_y.data(), codes.data(),
                                           static_cast<int>(x.size()), stream_->handle())));
  const std::vector<uint32_t> found = codes.Read(*stream_);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(found[i], FloatToFp8E4M3(x[i]) | uint32_t{FloatToFp8E4M3(y[i])} << 8) << x[i];
}

TEST_F(PtxTest, AndOrAndAndXorCombineTheMaskedBits) {
  std::vector<uint32_t> x;
  for (uint32_t i = 0; i < 256; ++i) x.push_back(i * 0x01010101u ^ i << 13);
  const DeviceArray<uint32_t> device_x(x, *stream_);
  const DeviceArray<uint32_t> ors(std::vector<uint32_t>(x.size(), 77), *stream_);
  const DeviceArray<uint32_t> xors(std::vector<uint32_t>(x.size(), 77), *stream_);
  const testing::MaskAndBits constants = {0x0ff08081u, 0xc300c3ffu};
  ASSERT_TRUE(IsOk(testing::RunAndOrXor(device_x.data(), constants, ors.data(), xors.data(),
                                        static_cast<int>(x.size()), stream_->handle())));
  const std::vector<uint32_t> found_or = ors.Read(*stream_), found_xor = xors.Read(*stream_);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(found_or[i], (x[i] & constants.mask) | constants.bits) << x[i];
    EXPECT_EQ(found_xor[i], (x[i] & constants.mask) ^ constants.bits) << x[i];
  }
}

}  // namespace
}  // namespace diffserve
