// SplitMix64's finalizer (Steele et al., "Fast splittable pseudorandom number generators"): a
// bijection with full avalanche, so that consecutive inputs give unrelated numbers.
#pragma once

#include <cstdint>

namespace diffserve {

constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace diffserve
