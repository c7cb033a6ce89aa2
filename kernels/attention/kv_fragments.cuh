// SPDX-License-Identifier: Apache-2.0
// A device's loads of each codec (kv_codec.h): fragments of 16 by 16 numbers, as mma takes them of
// K and of V, kUnits at a time. A codec may order dims of K and columns of V in its own way: Q
// gives the operand that fits K, and column 2 t + e of the i-th product of a unit is column
// OutColumn(t, e, i) of V.
//
// Codes become bfloat16, which holds them exactly, in registers. int8 codes of K stay as they are,
// 16 slots by 32 dims per unit, and multiply an int8 q (query_operands.cuh). A number of a slot is
// the fragment's number times Scale(the slot's scale as stored).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention/kv_codec.h"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

template <typename Codec>
struct KFragments;
template <typename Codec>
struct VFragments;

// For codecs that store no zero per slot.
struct ZeroIsKnown {
  __device__ __forceinline__ static float Scale(float stored) { return stored; }
  // What Load needs of two slots.
  __device__ __forceinline__ static uint32_t Zeros(float, float) { return 0; }
};

struct KAsStored : ZeroIsKnown {
  static constexpr int kUnits = 1;
  static constexpr bool kAsStored = true;

  // `offset`: of the lane's row, by (row, half). zeros: of slot lane / 4, twice, and of that + 8.
  template <typename Offset>
  __device__ __forceinline__ static void Load(uint32_t (&k)[kUnits][4], int lane,
                                              const uint32_t (&)[2], const Offset& offset) {
    LdMatrix4(k[0], offset(lane / 16 * 8 + lane % 8, lane / 8 % 2));
  }
  template <typename Offset>
  __device__ __forceinline__ static void LoadRows(uint32_t (&k)[kUnits][4], int lane,
                                                  const Offset& offset) {
    LdMatrix4(k[0], offset(lane % 16, lane / 16));
  }
};

template <>
struct KFragments<BFloat16Codec> : KAsStored {
  // Those of dims 0-15 that multiply the lower (part 0) or the upper fragment.
  __device__ __forceinline__ static uint32_t Q(const uint16_t* q, int part, int lane) {
    return *reinterpret_cast<const uint32_t*>(q + 8 * part + lane % 4 * 2);
  }
};

template <>
struct KFragments<Int8Codec> : KAsStored {};

template <>
struct VFragments<BFloat16Codec> : ZeroIsKnown {
  static constexpr int kUnits = 1;
  static constexpr bool kAsStored = true;

  // zeros: of slots 2 t and 2 t + 1 with t = lane % 4, and of those + 8.
  template <typename Offset>
  __device__ __forceinline__ static void Load(uint32_t (&v)[kUnits][4], int lane,
                                              const uint32_t (&)[2], const Offset& offset) {
    LdMatrix4Transposed(v[0], offset(lane / 8 % 2 * 8 + lane % 8, lane / 16));
  }
  template <typename Offset>
  __device__ __forceinline__ static void LoadRows(uint32_t (&v)[kUnits][4], int lane,
                                                  const Offset& offset) {
    LdMatrix4Transposed(v[0], offset(lane / 16 * 8 + lane % 8, lane / 8 % 2));
  }
  __device__ __forceinline__ static constexpr int OutColumn(int t, int e, int product) {
    return 8 * product + 2 * t + e;
  }
};

// Codes of four slots' rows and columns, by (chunk, slots 0-7 or 8-15).
template <typename Offset>
__device__ __forceinline__ void LoadCodes(uint32_t (&codes)[4], int lane, const Offset& offset) {
  LdMatrix4(codes, offset(lane / 8 % 2 * 8 + lane % 8, lane / 16));
}
template <typename Offset>
__device__ __forceinline__ void LoadCodesTransposed(uint32_t (&codes)[4], int lane,
                                                    const Offset& offset) {
  LdMatrix4Transposed(codes, offset(lane / 8 % 2 * 8 + lane % 8, lane / 16));
}

// For K, a lane's four neighbouring bytes are the dims of its two fragments: even dims and odd
// dims. For V they are the columns of two products, since ldmatrix transposes pairs of columns
// together.
struct BytePairs {
  __device__ __forceinline__ static uint32_t Q(const uint16_t* q, int part, int lane) {
    const uint2 dims = *reinterpret_cast<const uint2*>(q + lane % 4 * 4);
    return part == 0 ? (dims.x & 0xffff) | dims.y << 16 : dims.x >> 16 | (dims.y & 0xffff0000u);
  }
  __device__ __forceinline__ static constexpr int OutColumn(int t, int e, int product) {
    return 4 * t + 2 * e + product;
  }
};

// Widens bytes 0 and 2. Builds 128 + the low 7 bits, and subtracts the excess: 128, or 256 with bit
// 7.
__device__ __forceinline__ uint32_t WidenInt8(uint32_t codes) {
  return FmaBFloat16(AndOr(codes, 0x007f007fu, 0x43004300u), 0x3f803f80u,
                     AndXor(codes, 0x00800080u, 0xc300c300u));
}

// Widens bytes 0 and 2. With E4M3's exponent and mantissa in the place of a bfloat16's, the value
// is 2^-120 times the number, subnormal or not.
__device__ __forceinline__ uint32_t WidenFp8E4M3(uint32_t codes) {
  const uint32_t bits = (codes & 0x007f007fu) << 4 | (codes & 0x00800080u) << 8;
  return FmaBFloat16(bits, 0x7b807b80u, 0);
}

template <>
struct KFragments<Fp8E4M3Codec> : ZeroIsKnown, BytePairs {
  static constexpr int kUnits = 2;

  template <typename Offset>
  __device__ __forceinline__ static void Load(uint32_t (&k)[kUnits][4], int lane,
                                              const uint32_t (&)[2], const Offset& offset) {
    uint32_t codes[4];
    LoadCodes(codes, lane, offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      k[i / 2][i % 2 * 2] = WidenFp8E4M3(codes[i]);
      k[i / 2][i % 2 * 2 + 1] = WidenFp8E4M3(codes[i] >> 8);
    }
  }
};

template <uint32_t (*kWiden)(uint32_t)>
struct VOfBytes : ZeroIsKnown, BytePairs {
  static constexpr int kUnits = 2;

  template <typename Offset>
  __device__ __forceinline__ static void Load(uint32_t (&v)[kUnits][4], int lane,
                                              const uint32_t (&)[2], const Offset& offset) {
    uint32_t codes[4];
    LoadCodesTransposed(codes, lane, offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i / 2][i % 2] = kWiden(codes[i]);
      v[i / 2][i % 2 + 2] = kWiden(codes[i] >> 8);
    }
  }
};

template <>
struct VFragments<Int8Codec> : VOfBytes<WidenInt8> {};
template <>
struct VFragments<Fp8E4M3Codec> : VOfBytes<WidenFp8E4M3> {};

// In the bits of a bfloat16 below 256, a whole number n is n 2^-133. So one fused multiply-add
// computes (code - zero / kZeroUnits) / 64 from a code and a zero, exactly. Lower halves of bytes
// belong to one unit, upper halves to the next.
struct FourBitPairs : BytePairs {
  __device__ __forceinline__ static float Scale(float stored) {
    return 64.0f * FourBits::StepOf(stored);
  }
  // -zero 2^-10
  __device__ __forceinline__ static uint32_t Zeros(float first, float second) {
    const uint32_t zeros = static_cast<uint32_t>(FourBits::ZeroOf(first)) |
                           static_cast<uint32_t>(FourBits::ZeroOf(second)) << 16;
    return FmaBFloat16(zeros, 0xfd00fd00u, 0);  // -2^123
  }
  // Bytes 0 and 2.
  __device__ __forceinline__ static uint32_t Lower(uint32_t codes, uint32_t zeros) {
    return FmaBFloat16(codes & 0x000f000fu, 0x7f007f00u, zeros);  // 2^127
  }
  __device__ __forceinline__ static uint32_t Upper(uint32_t codes, uint32_t zeros) {
    return FmaBFloat16(codes & 0x00f000f0u, 0x7d007d00u, zeros);  // 2^123
  }
};

template <>
struct KFragments<Int4Codec> : FourBitPairs {
  static constexpr int kUnits = 4;

  template <typename Offset>
  __device__ __forceinline__ static void Load(uint32_t (&k)[kUnits][4], int lane,
                                              const uint32_t (&zeros)[2], const Offset& offset) {
    uint32_t codes[4];
    LoadCodes(codes, lane, offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int unit = i / 2 * 2;
      const int slots = i % 2;
      k[unit][slots * 2] = Lower(codes[i], zeros[slots]);
      k[unit][slots * 2 + 1] = Lower(codes[i] >> 8, zeros[slots]);
      k[unit + 1][slots * 2] = Upper(codes[i], zeros[slots]);
      k[unit + 1][slots * 2 + 1] = Upper(codes[i] >> 8, zeros[slots]);
    }
  }
};

template <>
struct VFragments<Int4Codec> : FourBitPairs {
  static constexpr int kUnits = 4;

  template <typename Offset>
  __device__ __forceinline__ static void Load(uint32_t (&v)[kUnits][4], int lane,
                                              const uint32_t (&zeros)[2], const Offset& offset) {
    uint32_t codes[4];
    LoadCodesTransposed(codes, lane, offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int unit = i / 2 * 2;
      const int slots = i % 2;
      v[unit][slots] = Lower(codes[i], zeros[slots]);
      v[unit][slots + 2] = Lower(codes[i] >> 8, zeros[slots]);
      v[unit + 1][slots] = Upper(codes[i], zeros[slots]);
      v[unit + 1][slots + 2] = Upper(codes[i] >> 8, zeros[slots]);
    }
  }
};

// The same fragments as the left operand of a product, whose 16 rows are slots of K or columns of
// V. Numbers as they are stored come in its order, since the registers of an operand are
// neighbours.
template <typename Fragments, typename Offset>
__device__ __forceinline__ void LoadRows(uint32_t (&rows)[Fragments::kUnits][4], int lane,
                                         const uint32_t (&zeros)[2], const Offset& offset) {
  if constexpr (requires { Fragments::kAsStored; }) {
    Fragments::LoadRows(rows, lane, offset);
  } else {
    Fragments::Load(rows, lane, zeros, offset);
#pragma unroll
    for (int unit = 0; unit < Fragments::kUnits; ++unit) {
      const uint32_t second = rows[unit][1];
      rows[unit][1] = rows[unit][2];
      rows[unit][2] = second;
    }
  }
}

template <>
struct KFragments<Int8KInt4VCodec> : KFragments<Int8Codec> {};
template <>
struct VFragments<Int8KInt4VCodec> : VFragments<Int4Codec> {};

}  // namespace diffserve::cuda
