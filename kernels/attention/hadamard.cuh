// SPDX-License-Identifier: Apache-2.0
// The Hadamard transform (hadamard.h) of numbers in a warp's registers. A pass combines numbers
// whose indices differ in one bit, which selects a register or a lane.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention/hadamard.h"

namespace diffserve::cuda {

// The factor for the sums and differences of all passes.
constexpr float HadamardFactor(int block) {
  float factor = 1.0f;
  for (int left = block; left > 1; left /= 4) factor *= left == 2 ? 0.70710678f : 0.5f;
  return factor;
}

// Neighbouring columns of V that a codec transforms together; 1: no transform.
template <typename Codec, int kHeadDim>
inline constexpr int kOutBlock = Codec::Description().transforms_v() ? kHeadDim & -kHeadDim : 1;

template <typename T>
__device__ __forceinline__ void HadamardPair(T& lower, T& upper) {
  const T sum = lower + upper;
  upper = lower - upper;
  lower = sum;
}

// Called by all lanes; `bit` is a bit of the lane's number.
template <typename T>
__device__ __forceinline__ void HadamardLanes(T& mine, int lane, int bit) {
  const T other = __shfl_xor_sync(0xffffffffu, mine, bit);
  mine = (lane & bit) != 0 ? other - mine : mine + other;
}
// The same by one instruction, which costs a register for the sign.
__device__ __forceinline__ void HadamardLanes(double& mine, int lane, int bit) {
  const double sign = (lane & bit) != 0 ? -1.0 : 1.0;
  mine = fma(mine, sign, __shfl_xor_sync(0xffffffffu, mine, bit));
}

}  // namespace diffserve::cuda
