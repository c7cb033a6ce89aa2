// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/kernel_levels.h"

#include <algorithm>
#include <bit>
#include <random>
#include <string>

namespace diffserve::testing {

namespace {

bool HasAvx2() {
  const std::vector<CpuIsa> levels = SupportedCpuIsas();
  return std::ranges::find(levels, CpuIsa::kAvx2) != levels.end();
}

}  // namespace

std::vector<CpuIsa> KernelLevels() {
  std::vector<CpuIsa> levels = SupportedCpuIsas();
  if (HasAvx2()) levels.push_back(CpuIsa::kPaired16);
  return levels;
}

CpuIsa EightLanes() { return HasAvx2() ? CpuIsa::kAvx2 : kBaseCpuIsa; }

std::vector<CpuIsa> LevelsOfEachWidth() {
  if (HasAvx2()) return {CpuIsa::kAvx2, CpuIsa::kPaired16};
  return {kBaseCpuIsa};
}

std::vector<float> RandomFloats(size_t count, uint32_t seed, float low, float high) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values)
    value = low + (high - low) * static_cast<float>(generator() >> 8) * 0x1p-24f;
  return values;
}

::testing::AssertionResult AllClose(std::span<const float> values, std::span<const float> expected,
                                    Tolerance tolerance) {
  if (values.size() != expected.size())
    return ::testing::AssertionFailure() << values.size() << " values, not " << expected.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!WithinTolerance(values[i], expected[i], tolerance)) {
      return ::testing::AssertionFailure() << "element " << i << " of " << values.size() << " is "
                                           << values[i] << ", expected " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult SameBits(std::span<const float> values,
                                    std::span<const float> expected) {
  if (values.size() != expected.size())
    return ::testing::AssertionFailure() << values.size() << " values, not " << expected.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::bit_cast<uint32_t>(values[i]) != std::bit_cast<uint32_t>(expected[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << values.size() << " is " << std::hexfloat << values[i]
             << ", not the same bits as " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace diffserve::testing
