// SPDX-License-Identifier: Apache-2.0
// 16 lanes in one AVX-512 register. Included only by simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace diffserve::DS_ISA {

struct F32 {
  __m512 v;
};
inline constexpr int kLanes = 16;

// REQUIRES: 0 <= n <= 16.
[[gnu::always_inline]] inline __mmask16 FirstMask(int n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}

[[gnu::always_inline]] inline F32 Zero() { return {_mm512_setzero_ps()}; }
[[gnu::always_inline]] inline F32 Set1(float x) { return {_mm512_set1_ps(x)}; }
[[gnu::always_inline]] inline F32 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
[[gnu::always_inline]] inline void Store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
[[gnu::always_inline]] inline F32 LoadFirst(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(FirstMask(n), p)};
}
[[gnu::always_inline]] inline void StoreFirst(float* p, int n, F32 a) {
  _mm512_mask_storeu_ps(p, FirstMask(n), a.v);
}
[[gnu::always_inline]] inline F32 EvenBf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
[[gnu::always_inline]] inline F32 OddBf16(const uint16_t* p) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper))};
}
[[gnu::always_inline]] inline F32 LoadBf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
[[gnu::always_inline]] inline F32 LoadBf16First(const uint16_t* p, int n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(FirstMask(n), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
[[gnu::always_inline]] inline F32 LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
[[gnu::always_inline]] inline F32 LoadF16First(const uint16_t* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstMask(n), p))};
}
// a * b + c in one rounding.
[[gnu::always_inline]] inline F32 Fma(F32 a, F32 b, F32 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
[[gnu::always_inline]] inline F32 Add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F32 Sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F32 Mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F32 Div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
// Max and Min give b if either operand is a NaN.
[[gnu::always_inline]] inline F32 Max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F32 Min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F32 RoundToNearest(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for whole n, -126 <= n <= 127.
[[gnu::always_inline]] inline F32 PowerOf2(F32 n) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// 2^n from the number 1.5 * 2^23 + 127 + n, for whole n, -126 <= n <= 127.
[[gnu::always_inline]] inline F32 PowerOf2OfShifted(F32 shifted) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23))};
}
// x < y ? a : b, lane by lane.
[[gnu::always_inline]] inline F32 SelectLess(F32 x, F32 y, F32 a, F32 b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
// Lane i < n ? a : b. n may lie outside 0 .. 16.
[[gnu::always_inline]] inline F32 SelectFirst(int n, F32 a, F32 b) {
  return {_mm512_mask_blend_ps(FirstMask(n < 0 ? 0 : n > kLanes ? kLanes : n), b.v, a.v)};
}
// ---- Integers: 16 of 32 bits, and 16 quads of 8 bits, one per lane.
struct I32 {
  __m512i v;
};
struct Quads {
  __m512i v;
};
[[gnu::always_inline]] inline I32 Set1Int(int32_t x) { return {_mm512_set1_epi32(x)}; }
[[gnu::always_inline]] inline I32 Add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
[[gnu::always_inline]] inline F32 ToFloat(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
[[gnu::always_inline]] inline int32_t ReduceAdd(I32 a) { return _mm512_reduce_add_epi32(a.v); }
// Rounds to nearest even.
[[gnu::always_inline]] inline I32 ToInt(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
// REQUIRES: within int8.
[[gnu::always_inline]] inline void StoreInt8(int8_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
[[gnu::always_inline]] inline Quads LoadQuads(const void* p) { return {_mm512_loadu_si512(p)}; }
[[gnu::always_inline]] inline Quads Set1Quad(int32_t quad) { return {_mm512_set1_epi32(quad)}; }
[[gnu::always_inline]] inline Quads LowerHalves(Quads a) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))};
}
[[gnu::always_inline]] inline Quads UpperHalves(Quads a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
[[gnu::always_inline]] inline Quads FlipTopBits(Quads a) {
  return {_mm512_xor_si512(a.v, _mm512_set1_epi8(-128))};
}
[[gnu::always_inline]] inline Quads Magnitudes(Quads a) { return {_mm512_abs_epi8(a.v)}; }
// a where `of` >= 0, -a where `of` < 0.
[[gnu::always_inline]] inline Quads WithSignsOf(Quads a, Quads of) {
  return {_mm512_mask_sub_epi8(a.v, _mm512_movepi8_mask(of.v), _mm512_setzero_si512(), a.v)};
}
#if defined(__AVX512VNNI__)
#define DS_HAS_INT8_DOT 1  // in one instruction
inline constexpr bool kDotsUnsigned = true;
#else
inline constexpr bool kDotsUnsigned = false;
#endif
// acc + the dot product of the lanes' quads; u is unsigned, s signed. REQUIRES: u <= 128, or
// kDotsUnsigned.
[[gnu::always_inline]] inline I32 DotQuads(I32 acc, Quads u, Quads s) {
#if defined(__AVX512VNNI__)
  return {_mm512_dpbusd_epi32(acc.v, u.v, s.v)};
#else
  const __m512i pairs = _mm512_maddubs_epi16(u.v, s.v);
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#endif
}
// The same for signed quads. REQUIRES: magnitudes of at most 128 in a, 127 in b.
[[gnu::always_inline]] inline I32 DotSigned(I32 acc, Quads a, Quads b) {
  return DotQuads(acc, Magnitudes(a), WithSignsOf(b, a));
}

// DotQuads for two products. u <= 15, so the sum of four products fits 16 bits.
[[gnu::always_inline]] inline I32 DotTwoQuads(I32 acc, Quads u0, Quads s0, Quads u1, Quads s1) {
#if defined(__AVX512VNNI__)
  return DotQuads(DotQuads(acc, u0, s0), u1, s1);
#else
  const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(u0.v, s0.v),
                                         _mm512_maddubs_epi16(u1.v, s1.v));
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#endif
}

// 16 pairs of 16 bits.
struct I16Pairs {
  __m512i v;
};
// Widens 16 pairs of signed 8-bit numbers.
[[gnu::always_inline]] inline I16Pairs WidenPairs(const void* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
// Widens, from 16 times 8 numbers of 4 bits, the one in each 16 bits that begins at bit kShift.
template <int kShift>
[[gnu::always_inline]] inline I16Pairs FourBitPairs(Quads a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, kShift), _mm512_set1_epi16(15))};
}
[[gnu::always_inline]] inline I16Pairs Set1Pair16(int32_t pair) {
  return {_mm512_set1_epi32(pair)};
}
// acc + a0 b0 + a1 b1 lane by lane.
[[gnu::always_inline]] inline I32 DotPairs(I32 acc, I16Pairs a, I16Pairs b) {
#if defined(__AVX512VNNI__)
  return {_mm512_dpwssd_epi32(acc.v, a.v, b.v)};
#else
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(a.v, b.v))};
#endif
}
// REQUIRES: within int16.
[[gnu::always_inline]] inline void StoreInt16(int16_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a.v));
}
[[gnu::always_inline]] inline I32 Subtract(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
[[gnu::always_inline]] inline I32 Multiply(I32 a, I32 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
[[gnu::always_inline]] inline I32 And(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
[[gnu::always_inline]] inline F32 AsFloat(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
[[gnu::always_inline]] inline I32 LoadInt16(const int16_t* p) {
  return {_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
[[gnu::always_inline]] inline I32 LoadInts(const float* p) { return {_mm512_loadu_si512(p)}; }
[[gnu::always_inline]] inline void StoreInts(float* p, I32 a) { _mm512_storeu_si512(p, a.v); }

#if defined(__AVX512BF16__)
#define DS_HAS_BF16_DOT 1
// 16 pairs of bfloat16; the first of a pair is the lower half of its 32 bits.
struct Bf16Pairs {
  __m512bh v;
};
[[gnu::always_inline]] inline Bf16Pairs LoadPairs(const uint16_t* p) {
  return {reinterpret_cast<__m512bh>(_mm512_loadu_si512(p))};
}
[[gnu::always_inline]] inline Bf16Pairs Set1Pair(uint32_t pair) {
  return {reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)))};
}
// acc + a0 b0 + a1 b1 lane by lane. Denormal products and sums become 0.
[[gnu::always_inline]] inline F32 DotPairs(F32 acc, Bf16Pairs a, Bf16Pairs b) {
  return {_mm512_dpbf16_ps(acc.v, a.v, b.v)};
}
// Rounds to nearest even; a denormal becomes 0.
[[gnu::always_inline]] inline void StoreBf16(uint16_t* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
}
#endif
// Sums the two halves first, then quarters, as in the 8-lane form.
[[gnu::always_inline]] inline __m256 UpperHalf(__m512 v) { return _mm512_extractf32x8_ps(v, 1); }
[[gnu::always_inline]] inline float ReduceMax(F32 a) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a.v), UpperHalf(a.v));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
[[gnu::always_inline]] inline float ReduceAdd(F32 a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), UpperHalf(a.v));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

}  // namespace diffserve::DS_ISA
