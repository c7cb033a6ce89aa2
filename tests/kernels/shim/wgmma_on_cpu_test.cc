// SPDX-License-Identifier: Apache-2.0
// Tests of the shim's wgmma: it multiplies according to descriptors and fragments, and it exposes
// wrong timing.
#include "tests/kernels/shim/wgmma_on_cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/kv_image.h"
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/base/cuda/wgmma.cuh"

namespace diffserve::shim {
namespace {

constexpr uint32_t kSharedBytes = 96 << 10;
constexpr unsigned kThreads = 128;

std::string RunBlock(const std::function<void()>& kernel, GridOptions options = {}) {
  SetGridOptions(options);
  std::string error = RunGrid({{1, 1, 1}, {kThreads, 1, 1}, kSharedBytes}, kernel);
  SetGridOptions({});
  return error;
}

// Small integers, so that every product and sum is exact.
std::vector<float> Integers(size_t count, std::mt19937& random) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 9) - 4);
  return values;
}

struct Operand {
  uint32_t begin;
  uint32_t leading;
  uint32_t stride;
  uint32_t first_row;  // of the swizzle's pattern, modulo 8
  bool is_mn_major;

  uint64_t Descriptor() const {
    return cuda::WgmmaOperand(begin, leading, stride) | uint64_t{first_row} << 49;
  }
  // The offset of an element by the layouts of the PTX manual: ((8, n), 64) : ((128, stride), 2),
  // or ((64, n), (8, k)) : ((2, leading), (128, stride)), in bytes. Bits 4-6 are then XORed with
  // bits 7-9, counted from the pattern's begin.
  uint32_t Address(uint32_t k, uint32_t n) const {
    const uint32_t offset = is_mn_major
                                ? n % 64 * 2 + n / 64 * leading + k % 8 * 128 + k / 8 * stride
                                : n % 8 * 128 + n / 8 * stride + k * 2;
    const uint32_t row = (begin + offset) / 128 + 8 - first_row;
    return (begin + offset) ^ (row % 8 * 16);
  }
};

// D = A B + initial, by one warpgroup.
template <size_t kN, bool kMnMajor>
std::vector<float> Multiply(const Operand& operand, const std::vector<float>& a,
                            const std::vector<float>& b, const std::vector<float>& initial,
                            bool accumulate, std::string* error) {
  std::vector<float> result(64 * kN);
  *error = RunBlock([&] {
    const unsigned t = threadIdx.x;
    for (uint32_t i = t; i < 16 * kN; i += kThreads) {
      *reinterpret_cast<uint16_t*>(cuda::DynamicShared() +
                                   operand.Address(i / kN, i % kN)) = FloatToBFloat16(b[i]);
    }
    __syncthreads();
    const size_t row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    const auto at = [&](size_t i, size_t j) { return a[(row + 8 * i) * 16 + column + 8 * j]; };
    const auto next = [&](size_t i, size_t j) {
      return a[(row + 8 * i) * 16 + column + 8 * j + 1];
    };
    uint32_t fragments[4];
    for (size_t i = 0; i < 4; ++i)
      fragments[i] = cuda::PackBFloat16(at(i % 2, i / 2), next(i % 2, i / 2));
    float d[kN / 2];
    const auto index = [&](size_t i) {
      return (row + i / 2 % 2 * 8) * kN + i / 4 * 8 + column + i % 2;
    };
    for (size_t i = 0; i < kN / 2; ++i) d[i] = initial[index(i)];
    cuda::WgmmaFence();
    cuda::Wgmma<kMnMajor>(d, fragments, operand.Descriptor(), accumulate);
    cuda::WgmmaCommit();
    cuda::WgmmaWait<0>();
    for (size_t i = 0; i < kN / 2; ++i) result[index(i)] = d[i];
  });
  return result;
}

template <size_t kN, bool kMnMajor>
void ExpectPlainProduct(std::mt19937& random) {
  for (bool accumulate : {false, true}) {
    const uint32_t first_row = random() % 2 == 0 ? 0 : random() % 8;
    const uint32_t begin = random() % 8 * 1024 + first_row * 128 +
                           (kMnMajor ? 0 : random() % 4 * 32);
    const uint32_t stride = 1024 * (1 + random() % 2);
    const uint32_t leading = kMnMajor ? 2048 * (2 + random() % 6) : 0;
    const Operand operand = {begin, leading, stride, first_row, kMnMajor};
    const std::vector<float> a = Integers(64 * 16, random);
    const std::vector<float> b = Integers(16 * kN, random);
    const std::vector<float> initial = Integers(64 * kN, random);
    std::vector<float> expected(64 * kN);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = accumulate ? initial[i] : 0.0f;
      for (size_t k = 0; k < 16; ++k) expected[i] += a[i / kN * 16 + k] * b[k * kN + i % kN];
    }
    std::string error;
    EXPECT_EQ((Multiply<kN, kMnMajor>(operand, a, b, initial, accumulate, &error)), expected)
        << kN << " " << begin << " " << stride << " " << leading << " " << first_row;
    EXPECT_EQ(error, "");
  }
}

TEST(WgmmaOnCpuTest, AnyOperandMultipliesLikeAMatrix) {
  std::mt19937 random(5);
  for (int i = 0; i < 6; ++i) {
    ExpectPlainProduct<64, false>(random);
    ExpectPlainProduct<64, true>(random);
    ExpectPlainProduct<128, false>(random);
    ExpectPlainProduct<128, true>(random);
    ExpectPlainProduct<256, false>(random);
    ExpectPlainProduct<256, true>(random);
  }
}

// A page's K is K-major and its V is MN-major, in their stored form.
TEST(WgmmaOnCpuTest, DescriptorsDescribeAnImagePage) {
  for (int columns : {64, 128, 256}) {
    const Operand v = {1024, 64 * 128, 1024, 0, true};
    for (uint32_t slot = 0; slot < 64; ++slot) {
      for (int i = 0; i < columns; ++i) {
        const uint32_t column = static_cast<uint32_t>(i);
        const uint32_t in_image = 1024 + 2 * static_cast<uint32_t>(KvImageOffset(
                                                 64, columns, static_cast<int>(slot), i));
        const Operand k = {1024 + column / 64 * 64 * 128 + column % 64 / 16 * 32, 0, 1024, 0,
                           false};
        ASSERT_EQ(k.Address(column % 16, slot), in_image);
        ASSERT_EQ(v.Address(slot, column), in_image);
      }
    }
  }
}

// One multiplication by ones; `spoil` changes something between the instruction and its wait.
struct Trial {
  float d[32];
  uint32_t a[4];
};
std::string RunTrial(CopyTiming timing, const std::function<void(Trial&)>& spoil,
                     std::vector<float>* result) {
  result->assign(kThreads, 0.0f);
  return RunBlock(
      [&] {
        for (uint32_t i = threadIdx.x; i < 8192 / 2; i += kThreads) {
          reinterpret_cast<uint16_t*>(cuda::DynamicShared())[i] = FloatToBFloat16(1.0f);
        }
        __syncthreads();
        Trial trial;
        std::fill(std::begin(trial.a), std::end(trial.a), cuda::PackBFloat16(1.0f, 1.0f));
        cuda::WgmmaFence();
        cuda::Wgmma<false>(trial.d, trial.a, cuda::WgmmaOperand(0, 0, 1024), false);
        cuda::WgmmaCommit();
        spoil(trial);
        cuda::WgmmaWait<0>();
        (*result)[threadIdx.x] = trial.d[5];
      },
      {.copy_timing = timing});
}

TEST(WgmmaOnCpuTest, AccumulatorsArriveAtTheWaitAndNotBefore) {
  std::vector<float> result;
  int finite = 0;
  EXPECT_EQ(
      RunTrial(
          CopyTiming::kEarly, [&](Trial& trial) { finite += std::isfinite(trial.d[5]); }, &result),
      "");
  EXPECT_EQ(finite, 0);
  EXPECT_EQ(result, std::vector<float>(kThreads, 16.0f));
  EXPECT_EQ(
      // A wait for no group.
      RunTrial(CopyTiming::kEarly, [&](Trial&) { cuda::WgmmaWait<1>(); }, &result), "");
  EXPECT_EQ(result, std::vector<float>(kThreads, 16.0f));
}

TEST(WgmmaOnCpuTest, RegistersOfAAndSharedMemoryAreReadUntilTheWait) {
  const auto change_a = [](Trial& trial) { trial.a[0] = cuda::PackBFloat16(3.0f, 3.0f); };
  const auto change_shared = [](Trial&) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 8192 / 2; i += kThreads) {
      reinterpret_cast<uint16_t*>(cuda::DynamicShared())[i] = FloatToBFloat16(2.0f);
    }
    __syncthreads();
  };
  for (const std::function<void(Trial&)>& spoil :
       {std::function<void(Trial&)>(change_a), {change_shared}}) {
    std::vector<float> result;
    EXPECT_EQ(RunTrial(CopyTiming::kEarly, spoil, &result), "");
    EXPECT_EQ(result, std::vector<float>(kThreads, 16.0f));
    EXPECT_EQ(RunTrial(CopyTiming::kLate, spoil, &result), "");
    EXPECT_NE(result, std::vector<float>(kThreads, 16.0f));
  }
}

TEST(WgmmaOnCpuTest, AccumulatorWrittenInFlightIsReported) {
  std::vector<float> result;
  EXPECT_EQ(RunTrial(
                CopyTiming::kEarly,
                [](Trial& trial) {
                  trial.d[5] *= 2.0f;
                  trial.d[6] = 1.0f;
                },
                &result),
            "an accumulator changes while wgmma is in flight");
}

// Groups are waited for in commit order; multiplications of one accumulator run in issue order.
TEST(WgmmaOnCpuTest, WaitCoversAllButTheNewestGroups) {
  for (CopyTiming timing : {CopyTiming::kEarly, CopyTiming::kLate, CopyTiming::kShuffled}) {
    int wrong = 0;
    EXPECT_EQ(RunBlock(
                  [&] {
                    for (uint32_t i = threadIdx.x; i < 8192 / 2; i += kThreads) {
                      reinterpret_cast<uint16_t*>(cuda::DynamicShared())[i] = FloatToBFloat16(1.0f);
                    }
                    __syncthreads();
                    uint32_t a[4];
                    std::fill(std::begin(a), std::end(a), cuda::PackBFloat16(1.0f, 1.0f));
                    const uint64_t b = cuda::WgmmaOperand(0, 0, 1024);
                    float first[32], second[32];
                    cuda::WgmmaFence();
                    cuda::Wgmma<false>(first, a, b, false);
                    cuda::Wgmma<false>(first, a, b, true);
                    cuda::Wgmma<false>(first, a, cuda::WgmmaAdvance(b, 32), true);
                    cuda::WgmmaCommit();
                    cuda::Wgmma<false>(second, a, b, false);
                    cuda::WgmmaCommit();
                    cuda::WgmmaWait<1>();
                    wrong += first[31] != 48.0f;
                    wrong += !std::isnan(second[31]);
                    cuda::WgmmaWait<0>();
                    wrong += second[31] != 16.0f;
                  },
                  {.copy_timing = timing}),
              "");
    EXPECT_EQ(wrong, 0);
  }
}

TEST(WgmmaOnCpuTest, WrongUsesAreReported) {
  const auto issue = [](uint64_t operand, bool fence, bool wait) {
    return RunBlock([=] {
      float d[32];
      uint32_t a[4] = {};
      if (fence) cuda::WgmmaFence();
      cuda::Wgmma<false>(d, a, operand, false);
      cuda::WgmmaCommit();
      if (wait) cuda::WgmmaWait<0>();
    });
  };
  const uint64_t good = cuda::WgmmaOperand(0, 0, 1024);
  EXPECT_EQ(issue(good, true, true), "");
  EXPECT_EQ(issue(good, false, true), "a task is issued without a fence after the last wait");
  EXPECT_EQ(issue(good, true, false), "a warp ends with tasks in flight");
  EXPECT_EQ(issue(good & ~(uint64_t{3} << 62), true, true),
            "wgmma: only the 128-byte swizzle is simulated");
  // Its end is beyond the block's memory.
  EXPECT_NE(issue(cuda::WgmmaOperand(kSharedBytes - 4096, 0, 1024), true, true), "");
  EXPECT_EQ(RunBlock([=] {
              float d[32];
              uint32_t a[4] = {};
              cuda::WgmmaFence();
              cuda::Wgmma<false>(d, a, cuda::WgmmaAdvance(good, threadIdx.x / 32 == 2 ? 32 : 0),
                                 false);
              cuda::WgmmaCommit();
              cuda::WgmmaWait<0>();
            }),
            "warps of a warpgroup issue different tasks");
  EXPECT_EQ(RunBlock([=] {
              float d[32];
              uint32_t a[4] = {};
              if (threadIdx.x / 32 == 3) return;
              cuda::WgmmaFence();
              cuda::Wgmma<false>(d, a, good, false);
              cuda::WgmmaCommit();
              cuda::WgmmaWait<0>();
            }),
            "a warp issues fewer tasks than its warpgroup");
}

}  // namespace
}  // namespace diffserve::shim
