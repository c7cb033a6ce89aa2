// The Hadamard transform (hadamard.h) of numbers that lie in a warp's registers: a pass takes those
// whose indices differ in one bit, which may be a register's or a lane's.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention/hadamard.h"

namespace diffserve::cuda {

// What the passes' sums and differences are multiplied by.
constexpr float HadamardFactor(int block) {
  float factor = 1.0f;
  for (int left = block; left > 1; left /= 4) factor *= left == 2 ? 0.70710678f : 0.5f;
  return factor;
}

// Neighbouring columns of V that a codec transforms together; 1: none.
template <typename Codec, int kHeadDim>
inline constexpr int kOutBlock = Codec::Description().transforms_v() ? kHeadDim & -kHeadDim : 1;

template <typename T>
__device__ __forceinline__ void HadamardPair(T& lower, T& upper) {
  const T sum = lower + upper;
  upper = lower - upper;
  lower = sum;
}

// By all lanes; `bit` is that of a lane's number.
template <typename T>
__device__ __forceinline__ void HadamardLanes(T& mine, int lane, int bit) {
  const T other = __shfl_xor_sync(0xffffffffu, mine, bit);
  mine = (lane & bit) != 0 ? other - mine : mine + other;
}

}  // namespace diffserve::cuda
