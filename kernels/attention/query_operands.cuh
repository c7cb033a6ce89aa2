// SPDX-License-Identifier: Apache-2.0
// q of a warp's 16 mma rows as the operand that multiplies K (kv_fragments.cuh). Lane l holds
// numbers of rows l / 4 and l / 4 + 8, its two halves. With turned products, where K has the rows,
// each half is 8 columns.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/int8_row.h"
#include "kernels/attention/kv_fragments.cuh"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

// Sums of bfloat16 products. They begin with First; Product turns a finished sum into a score.
struct FloatSums {
  using Sum = float;
  __device__ __forceinline__ static Sum First(int) { return 0.0f; }
  __device__ __forceinline__ static float Product(Sum sum, int) { return sum; }

  // Turned: sums of 16 slots and the 8 columns of a half.
  struct Finish {};
  // For the half's column that lane `lane` loaded. Called by all lanes.
  __device__ __forceinline__ static Finish FinishOf(int, int) { return {}; }
  __device__ __forceinline__ static Sum First(const Finish&) { return 0.0f; }
  __device__ __forceinline__ static float Product(Sum sum, const Finish&) { return sum; }
};

// As RopeAppend writes it.
template <typename Codec, int kHeadDim>
struct BFloat16Queries : FloatSums {
  static constexpr int kDims = 16;  // per unit of K
  static constexpr int kUnits = kHeadDim / kDims;

  uint32_t q[kUnits][4];

  // nullptr: no row.
  __device__ __forceinline__ void Load(int half, const uint16_t* row, int lane) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int part = 0; part < 2; ++part)
        q[unit][2 * part + half] = row == nullptr
                                       ? 0
                                       : KFragments<Codec>::Q(row + kDims * unit, part, lane);
    }
  }
  __device__ __forceinline__ void Multiply(Sum (&sums)[2][4], int unit,
                                           const uint32_t (&k)[4]) const {
    MmaBFloat16(sums[0], q[unit], k[0], k[1]);
    MmaBFloat16(sums[1], q[unit], k[2], k[3]);
  }
  __device__ __forceinline__ void MultiplyTurned(Sum (&sums)[4], int half, int unit,
                                                 const uint32_t (&k)[4]) const {
    MmaBFloat16(sums, k, q[unit][half], q[unit][2 + half]);
  }
};

// The same for a head that would fill the registers: read from global memory for each product.
template <typename Codec, int kHeadDim>
struct UnloadedQueries : FloatSums {
  static constexpr int kDims = 16;
  static constexpr int kUnits = kHeadDim / kDims;

  const uint16_t* q[2];  // nullptr: no row
  int lane;

  __device__ __forceinline__ void Load(int half, const uint16_t* row, int of_lane) {
    q[half] = row;
    lane = of_lane;
  }
  __device__ __forceinline__ void Multiply(Sum (&sums)[2][4], int unit,
                                           const uint32_t (&k)[4]) const {
    uint32_t operand[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) operand[i] = Operand(i % 2, unit, i / 2);
    MmaBFloat16(sums[0], operand, k[0], k[1]);
    MmaBFloat16(sums[1], operand, k[2], k[3]);
  }
  __device__ __forceinline__ void MultiplyTurned(Sum (&sums)[4], int half, int unit,
                                                 const uint32_t (&k)[4]) const {
    MmaBFloat16(sums, k, Operand(half, unit, 0), Operand(half, unit, 1));
  }

 private:
  __device__ __forceinline__ uint32_t Operand(int half, int unit, int part) const {
    const uint16_t* row = q[half];
    return row == nullptr ? 0 : KFragments<Codec>::Q(row + kDims * unit, part, lane);
  }
};

// As int8 codes (int8_row.h), for int8 K: sums are exact.
template <int kHeadDim>
struct Int8Queries {
  using Sum = int32_t;
  static constexpr int kDims = 32;
  static constexpr int kUnits = (kHeadDim + kDims - 1) / kDims;

  uint32_t q[kUnits][4];
  float scale[2];
  // Initial value of the sums: the bits of the float 1.5 * 2^23, minus the codes of q times kZero,
  // which is in each code of K. A finished sum is then the bits of a float that is larger than it
  // by 1.5 * 2^23.
  int32_t first[2];

  // Called by all lanes.
  __device__ __forceinline__ void Load(int half, const uint16_t* row, int lane) {
    float largest = 0.0f;
    float poison = 0.0f;
    ForEachQuad(row, lane, [&](int, int, const float(&numbers)[4]) {
#pragma unroll
      for (float number : numbers) {
        largest = fmaxf(largest, fabsf(number));
        poison += number * 0.0f;
      }
    });
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, bit));
      poison += __shfl_xor_sync(kAllLanes, poison, bit);
    }
    const Int8Row codes = Int8Row::Of(largest, poison);
    int32_t sum = 0;
    ForEachQuad(row, lane, [&](int unit, int part, const float(&numbers)[4]) {
      uint32_t quad = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t code = codes.CodeOf(numbers[i]);
        quad |= (static_cast<uint32_t>(code) & 0xff) << (8 * i);
        sum += code;
      }
      q[unit][2 * part + half] = quad;
    });
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) sum += __shfl_xor_sync(kAllLanes, sum, bit);
    scale[half] = codes.scale;
    first[half] = kFloatOfSums - Int8Codec::kZero * sum;
  }
  __device__ __forceinline__ Sum First(int half) const { return first[half]; }
  __device__ __forceinline__ void Multiply(Sum (&sums)[2][4], int unit,
                                           const uint32_t (&k)[4]) const {
    MmaInt8(sums[0], q[unit], k[0], k[1]);
    MmaInt8(sums[1], q[unit], k[2], k[3]);
  }
  __device__ __forceinline__ float Product(Sum sum, int half) const {
    return Product(sum, Finish{scale[half], 0});
  }

  struct Finish {
    float scale;
    int32_t first;
  };
  __device__ __forceinline__ Finish FinishOf(int half, int lane) const {
    return {__shfl_sync(kAllLanes, scale[half], lane), __shfl_sync(kAllLanes, first[half], lane)};
  }
  __device__ __forceinline__ static Sum First(const Finish& finish) { return finish.first; }
  __device__ __forceinline__ static float Product(Sum sum, const Finish& finish) {
    return (__builtin_bit_cast(float, sum) - 12582912.0f) * finish.scale;
  }
  __device__ __forceinline__ void MultiplyTurned(Sum (&sums)[4], int half, int unit,
                                                 const uint32_t (&k)[4]) const {
    MmaInt8Turned(sums, k, q[unit][half], q[unit][2 + half]);
  }

 private:
  static constexpr uint32_t kAllLanes = 0xffffffffu;
  static constexpr int32_t kFloatOfSums = 0x4b400000;
  static_assert(kHeadDim * Int8Codec::kMaxCode * Int8Codec::kZero < 1 << 22);

  // The lane's numbers of the row, four by four. Zeros after its last dim, and if there is no row.
  template <typename Visit>
  __device__ __forceinline__ static void ForEachQuad(const uint16_t* row, int lane,
                                                     const Visit& visit) {
#pragma unroll
    for (int i = 0; i < 2 * kUnits; ++i) {
      uint2 pairs = make_uint2(0, 0);
      if (16 * i < kHeadDim && row != nullptr)
        pairs = *reinterpret_cast<const uint2*>(row + 16 * i + lane % 4 * 4);
      const float numbers[4] = {BFloat16ToFloat(static_cast<uint16_t>(pairs.x)),
                                BFloat16ToFloat(static_cast<uint16_t>(pairs.x >> 16)),
                                BFloat16ToFloat(static_cast<uint16_t>(pairs.y)),
                                BFloat16ToFloat(static_cast<uint16_t>(pairs.y >> 16))};
      visit(i / 2, i % 2, numbers);
    }
  }
};

template <typename Codec, int kHeadDim>
using WideQueries = std::conditional_t<(kHeadDim > 128), UnloadedQueries<Codec, kHeadDim>,
                                       BFloat16Queries<Codec, kHeadDim>>;
template <typename Codec, int kHeadDim>
using QueryOperands = std::conditional_t<Codec::Description().has_int8_k(), Int8Queries<kHeadDim>,
                                         WideQueries<Codec, kHeadDim>>;

}  // namespace diffserve::cuda
