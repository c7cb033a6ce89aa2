// SPDX-License-Identifier: Apache-2.0
// Random bits for keys and seeds. Sampling has its own generator (kernels/ops/sample_task.cc).
#pragma once

#include <cstdint>
#include <random>

namespace diffserve {

// A bijective mix with full avalanche: a step of SplitMix64 (Steele, Lea and Flood 2014).
// Consecutive numbers give unrelated results.
constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// 64 unpredictable bits.
inline uint64_t RandomBits() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace diffserve
