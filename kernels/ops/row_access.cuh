// SPDX-License-Identifier: Apache-2.0
// How the row-wise kernels share the work and access a row: one thread block per token (and,
// without a reduction, per slice of columns); kVec elements, 8 or 1, per access.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/base/cuda/launch.cuh"
#include "kernels/base/dtype.h"

namespace diffserve::cuda {

constexpr int kRowThreads = 256;

// Sixteen bytes in one access.
struct alignas(16) Words4 {
  uint32_t word[4];
};

template <int kVec>
__device__ inline void LoadRow(const float* from, float (&to)[kVec]) {
  if constexpr (kVec == 8) {
    const Words4 low = *reinterpret_cast<const Words4*>(from),
                 high = *reinterpret_cast<const Words4*>(from + 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = __builtin_bit_cast(float, low.word[i]);
      to[i + 4] = __builtin_bit_cast(float, high.word[i]);
    }
  } else {
    to[0] = from[0];
  }
}

template <int kVec>
__device__ inline void LoadRow(const BFloat16* from, float (&to)[kVec]) {
  if constexpr (kVec == 8) {
    const Words4 words = *reinterpret_cast<const Words4*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = BFloat16ToFloat(static_cast<BFloat16>(words.word[i]));
      to[2 * i + 1] = BFloat16ToFloat(static_cast<BFloat16>(words.word[i] >> 16));
    }
  } else {
    to[0] = BFloat16ToFloat(from[0]);
  }
}

template <int kVec>
__device__ inline void StoreRow(const float (&from)[kVec], float* to) {
  if constexpr (kVec == 8) {
    Words4 low, high;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low.word[i] = __builtin_bit_cast(uint32_t, from[i]);
      high.word[i] = __builtin_bit_cast(uint32_t, from[i + 4]);
    }
    *reinterpret_cast<Words4*>(to) = low;
    *reinterpret_cast<Words4*>(to + 4) = high;
  } else {
    to[0] = from[0];
  }
}

template <int kVec>
__device__ inline void StoreRow(const float (&from)[kVec], BFloat16* to) {
  if constexpr (kVec == 8) {
    Words4 words;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words.word[i] = FloatToBFloat16(from[2 * i]) | uint32_t{FloatToBFloat16(from[2 * i + 1])}
                                                         << 16;
    *reinterpret_cast<Words4*>(to) = words;
  } else {
    to[0] = FloatToBFloat16(from[0]);
  }
}

constexpr int kVecWide = 8;

inline bool TakesWideAccesses(int64_t width, std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return width % kVecWide == 0 && bits % sizeof(Words4) == 0;
}

// One thread block per token and slice of columns.
inline LaunchShape SlicedTokens(int num_tokens, int width, int vec) {
  const int slice = kRowThreads * vec;
  return {
      dim3(static_cast<unsigned>(num_tokens), static_cast<unsigned>((width + slice - 1) / slice)),
      dim3(kRowThreads)};
}

}  // namespace diffserve::cuda
