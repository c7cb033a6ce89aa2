// SPDX-License-Identifier: Apache-2.0
// 8 lanes in whatever registers every processor has: the level "plain". A product and a sum are
// two roundings where the processor has no fused multiply-add. Included only by simd.h.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/base/simd_vectors.h"

namespace diffserve::DS_ISA {

#define DS_FMA_ROUNDS_TWICE 1
[[gnu::always_inline]] inline F32 Fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }

using Doubles8 [[gnu::vector_size(64)]] = double;
using Longs8 [[gnu::vector_size(64)]] = int64_t;

// a * b + c in one rounding. The product is exact in float64. The sum there, if it is not exact,
// gets an odd last bit, so that rounding it to float32 is the only rounding that counts.
[[gnu::always_inline]] inline F32 FmaRoundedOnce(F32 a, F32 b, F32 c) {
  const Doubles8 product = __builtin_convertvector(a.v, Doubles8) *
                           __builtin_convertvector(b.v, Doubles8);
  const Doubles8 addend = __builtin_convertvector(c.v, Doubles8);
  const Doubles8 sum = product + addend;
  const Doubles8 of_addend = sum - product;
  const Doubles8 error = (product - (sum - of_addend)) + (addend - of_addend);
  const Longs8 bits = As<Longs8>(sum);
  // In units of the last bit: 1 away from zero, -1 towards it; none for an infinity or a NaN.
  const Longs8 grows = ((error > 0.0) & (sum > 0.0)) | ((error < 0.0) & (sum < 0.0));
  const Longs8 shrinks = ((error > 0.0) & (sum < 0.0)) | ((error < 0.0) & (sum > 0.0));
  const Longs8 is_even = (bits & 1) - 1;
  const Longs8 odd = bits + ((shrinks - grows) & is_even);
  return {__builtin_convertvector(As<Doubles8>(odd), Floats8)};
}

// To nearest even, with the number's sign. From 2^23 on every float is whole.
[[gnu::always_inline]] inline F32 RoundToNearest(F32 a) {
  const Bits8 sign = As<Bits8>(a.v) & 0x80000000u;
  const Floats8 magnitude = As<Floats8>(As<Bits8>(a.v) & 0x7fffffffu);
  const Floats8 shift = Same8<Floats8>(8388608.0f);
  const Floats8 whole = As<Floats8>(As<Bits8>((magnitude + shift) - shift) | sign);
  return {magnitude < shift ? whole : a.v};
}
// Rounds to nearest even. REQUIRES: below 2^22.
[[gnu::always_inline]] inline I32 ToInt(F32 a) {
  const Floats8 shift = Same8<Floats8>(12582912.0f);
  return {As<Ints8>(As<Bits8>(a.v + shift) - As<Bits8>(shift))};
}
// As Float16ToFloat.
[[gnu::always_inline]] inline F32 LoadF16(const uint16_t* p) {
  const Bits8 bits = WidenShorts(p);
  const Bits8 sign = (bits & 0x8000u) << 16;
  const Bits8 magnitude = bits & 0x7fffu;
  const Bits8 scaled = As<Bits8>(As<Floats8>(magnitude << 13) * 0x1p112f);
  const Bits8 special = (magnitude << 13) | 0x7f800000u;
  return {As<Floats8>(sign | (magnitude >= 0x7c00u ? special : scaled))};
}

// acc + a0 b0 + a1 b1 lane by lane.
[[gnu::always_inline]] inline I32 DotPairs(I32 acc, I16Pairs a, I16Pairs b) {
#if defined(__SSE2__)
  __m128i left[2], right[2];
  StoreVector(left, a.v);
  StoreVector(right, b.v);
  const __m128i sums[2] = {_mm_madd_epi16(left[0], right[0]), _mm_madd_epi16(left[1], right[1])};
  return Add(acc, {LoadVector<Ints8>(sums)});
#else
  const Ints8 left = As<Ints8>(a.v), right = As<Ints8>(b.v);
  const Ints8 first = (left << 16 >> 16) * (right << 16 >> 16);
  return Add(Add(acc, {first}), {(left >> 16) * (right >> 16)});
#endif
}
// acc + the dot product of the lanes' quads, both signed.
[[gnu::always_inline]] inline I32 DotSigned(I32 acc, Quads a, Quads b) {
  const Shorts16 left = As<Shorts16>(a.v), right = As<Shorts16>(b.v);
  const I32 even = DotPairs(acc, {left << 8 >> 8}, {right << 8 >> 8});
  return DotPairs(even, {left >> 8}, {right >> 8});
}
inline constexpr bool kDotsUnsigned = false;
// The same with an unsigned u. REQUIRES: u <= 127.
[[gnu::always_inline]] inline I32 DotQuads(I32 acc, Quads u, Quads s) {
  return DotSigned(acc, u, s);
}
[[gnu::always_inline]] inline I32 DotTwoQuads(I32 acc, Quads u0, Quads s0, Quads u1, Quads s1) {
  return DotQuads(DotQuads(acc, u0, s0), u1, s1);
}

}  // namespace diffserve::DS_ISA
