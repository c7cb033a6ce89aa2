// SPDX-License-Identifier: Apache-2.0
// Random bits for ids, secrets, keys and seeds, and a mix for hashes. Sampling has its own
// generator (kernels/ops/sample_task.cc). Thread safety: pure functions, or functions without state
// of ours.
#pragma once

#include <cstdint>
#include <span>

namespace diffserve {

// A bijective mix with full avalanche: a step of SplitMix64 (Steele, Lea and Flood 2014).
// Consecutive numbers give unrelated results. It hides nothing, because it can be inverted.
constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Fills `bytes` from the kernel's cryptographic generator: earlier output tells nothing about later
// output. Nothing is buffered, so a forked process never repeats its parent's bytes. Ends the
// process if the kernel refuses.
void FillRandom(std::span<unsigned char> bytes);
// 64 bits of it.
uint64_t RandomBits();

}  // namespace diffserve
