// SPDX-License-Identifier: Apache-2.0
// The levels a kernel test runs at, seeded inputs, and comparisons that name the first element at
// fault.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/thread_pool.h"
#include "tests/testing/kernels/kernel_tolerance.h"

namespace diffserve::testing {

// Every level this machine has, and the 16-lane code in AVX2 registers if it has those.
std::vector<CpuIsa> KernelLevels();

// A fast level of 8 lanes, and one of each number of lanes, the fewest first.
CpuIsa EightLanes();
std::vector<CpuIsa> LevelsOfEachWidth();

// Uniform in [low, high).
std::vector<float> RandomFloats(size_t count, uint32_t seed, float low = -1.0f, float high = 1.0f);
::testing::AssertionResult AllClose(std::span<const float> values, std::span<const float> expected,
                                    Tolerance tolerance);
::testing::AssertionResult SameBits(std::span<const float> values, std::span<const float> expected);

}  // namespace diffserve::testing
