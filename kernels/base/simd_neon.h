// SPDX-License-Identifier: Apache-2.0
// 8 lanes in two registers of an ARM processor of 64 bits: the levels "neon", "neon_dot" and
// "neon_bf16". Lanes and their order are avx2's, and so are the bits of all results in float32.
// Included only by simd.h.
#pragma once

#include <arm_neon.h>

#include "kernels/base/simd_vectors.h"

namespace diffserve::DS_ISA {

// A vector's two registers.
template <typename Register>
struct Halves {
  Register lo;
  Register hi;
};
template <typename Register, typename Vector>
[[gnu::always_inline]] inline Halves<Register> Split(Vector v) {
  return As<Halves<Register>>(v);
}
template <typename Vector, typename Register>
[[gnu::always_inline]] inline Vector Join(Register lo, Register hi) {
  return As<Vector>(Halves<Register>{lo, hi});
}

// a * b + c in one rounding.
[[gnu::always_inline]] inline F32 Fma(F32 a, F32 b, F32 c) {
  return {__builtin_elementwise_fma(a.v, b.v, c.v)};
}
[[gnu::always_inline]] inline F32 RoundToNearest(F32 a) {
  return {__builtin_elementwise_roundeven(a.v)};
}
// Rounds to nearest even.
[[gnu::always_inline]] inline I32 ToInt(F32 a) {
  const auto [lo, hi] = Split<float32x4_t>(a.v);
  return {Join<Ints8>(vcvtnq_s32_f32(lo), vcvtnq_s32_f32(hi))};
}
[[gnu::always_inline]] inline F32 LoadF16(const uint16_t* p) {
  const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
  return {Join<Floats8>(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))};
}

// acc + a0 b0 + a1 b1 lane by lane.
[[gnu::always_inline]] inline int32x4_t PairSums(int16x8_t a, int16x8_t b) {
  return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}
[[gnu::always_inline]] inline I32 DotPairs(I32 acc, I16Pairs a, I16Pairs b) {
  const auto [a_lo, a_hi] = Split<int16x8_t>(a.v);
  const auto [b_lo, b_hi] = Split<int16x8_t>(b.v);
  return Add(acc, {Join<Ints8>(PairSums(a_lo, b_lo), PairSums(a_hi, b_hi))});
}

// acc + the dot product of the lanes' quads, both signed. REQUIRES without __ARM_FEATURE_DOTPROD:
// magnitudes of a are at most 128, those of b at most 127, so that the sum of two products fits 16
// bits.
[[gnu::always_inline]] inline int32x4_t DotOfSigned(int32x4_t acc, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
#define DS_HAS_INT8_DOT 1  // in one instruction
  return vdotq_s32(acc, a, b);
#else
  return vpadalq_s16(acc,
                     vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}
[[gnu::always_inline]] inline I32 DotSigned(I32 acc, Quads a, Quads b) {
  const auto [acc_lo, acc_hi] = Split<int32x4_t>(acc.v);
  const auto [a_lo, a_hi] = Split<int8x16_t>(a.v);
  const auto [b_lo, b_hi] = Split<int8x16_t>(b.v);
  return {Join<Ints8>(DotOfSigned(acc_lo, a_lo, b_lo), DotOfSigned(acc_hi, a_hi, b_hi))};
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr bool kDotsUnsigned = true;
#else
inline constexpr bool kDotsUnsigned = false;
#endif
// The same with an unsigned u. REQUIRES: u <= 127, or kDotsUnsigned.
[[gnu::always_inline]] inline I32 DotQuads(I32 acc, Quads u, Quads s) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  const auto [acc_lo, acc_hi] = Split<int32x4_t>(acc.v);
  const auto [u_lo, u_hi] = Split<uint8x16_t>(u.v);
  const auto [s_lo, s_hi] = Split<int8x16_t>(s.v);
  return {Join<Ints8>(vusdotq_s32(acc_lo, u_lo, s_lo), vusdotq_s32(acc_hi, u_hi, s_hi))};
#else
  return DotSigned(acc, u, s);
#endif
}
// The same for two products. u <= 15, so the sum of four products fits 16 bits.
[[gnu::always_inline]] inline I32 DotTwoQuads(I32 acc, Quads u0, Quads s0, Quads u1, Quads s1) {
#if defined(__ARM_FEATURE_DOTPROD)
  return DotSigned(DotSigned(acc, u0, s0), u1, s1);
#else
  const auto sums = [](int32x4_t to, int8x16_t a0, int8x16_t b0, int8x16_t a1, int8x16_t b1) {
    const int16x8_t lo = vmlal_s8(vmull_s8(vget_low_s8(a0), vget_low_s8(b0)), vget_low_s8(a1),
                                  vget_low_s8(b1));
    const int16x8_t hi = vmlal_high_s8(vmull_high_s8(a0, b0), a1, b1);
    return vpadalq_s16(to, vpaddq_s16(lo, hi));
  };
  const auto [acc_lo, acc_hi] = Split<int32x4_t>(acc.v);
  const auto a0 = Split<int8x16_t>(u0.v), a1 = Split<int8x16_t>(u1.v);
  const auto b0 = Split<int8x16_t>(s0.v), b1 = Split<int8x16_t>(s1.v);
  return {Join<Ints8>(sums(acc_lo, a0.lo, b0.lo, a1.lo, b1.lo),
                      sums(acc_hi, a0.hi, b0.hi, a1.hi, b1.hi))};
#endif
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define DS_HAS_BF16_DOT 1
// 8 pairs of bfloat16; the first of a pair is the lower half of its 32 bits.
struct Bf16Pairs {
  Bits8 v;
};
[[gnu::always_inline]] inline Bf16Pairs LoadPairs(const uint16_t* p) {
  return {LoadVector<Bits8>(p)};
}
[[gnu::always_inline]] inline Bf16Pairs Set1Pair(uint32_t pair) { return {Same8<Bits8>(pair)}; }
// acc + a0 b0 + a1 b1 lane by lane. Denormal products and sums become 0.
[[gnu::always_inline]] inline F32 DotPairs(F32 acc, Bf16Pairs a, Bf16Pairs b) {
  const auto [acc_lo, acc_hi] = Split<float32x4_t>(acc.v);
  const auto [a_lo, a_hi] = Split<bfloat16x8_t>(a.v);
  const auto [b_lo, b_hi] = Split<bfloat16x8_t>(b.v);
  return {Join<Floats8>(vbfdotq_f32(acc_lo, a_lo, b_lo), vbfdotq_f32(acc_hi, a_hi, b_hi))};
}
// Rounds to nearest even.
[[gnu::always_inline]] inline void StoreBf16(uint16_t* p, F32 a) {
  const auto [lo, hi] = Split<float32x4_t>(a.v);
  StoreVector(p, vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(lo), hi));
}
#endif

}  // namespace diffserve::DS_ISA
