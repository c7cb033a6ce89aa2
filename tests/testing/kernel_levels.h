// SPDX-License-Identifier: Apache-2.0
// The levels a kernel test runs at, seeded inputs, and comparisons that name the first element at
// fault.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/thread_pool.h"
#include "tests/testing/kernel_tolerance.h"

namespace diffserve::testing {

// Every level this machine has, and the 16-lane code in AVX2 registers.
inline std::vector<CpuIsa> KernelLevels() {
  std::vector<CpuIsa> levels = SupportedCpuIsas();
  if (!levels.empty()) levels.push_back(CpuIsa::kPaired16);
  return levels;
}

// Uniform in [low, high).
inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float low = -1.0f,
                                       float high = 1.0f) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values)
    value = low + (high - low) * static_cast<float>(generator() >> 8) * 0x1p-24f;
  return values;
}

inline ::testing::AssertionResult AllClose(std::span<const float> values,
                                           std::span<const float> expected, Tolerance tolerance) {
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

inline ::testing::AssertionResult SameBits(std::span<const float> values,
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
