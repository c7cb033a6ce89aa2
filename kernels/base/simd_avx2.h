// SPDX-License-Identifier: Apache-2.0
// 8 lanes in one AVX2 register. Included only by simd.h and simd_paired.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace diffserve::DS_ISA {

struct F8 {
  __m256 v;
};

[[gnu::always_inline]] inline __m256i FirstMask8(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

[[gnu::always_inline]] inline F8 Zero8() { return {_mm256_setzero_ps()}; }
[[gnu::always_inline]] inline F8 Set8(float x) { return {_mm256_set1_ps(x)}; }
[[gnu::always_inline]] inline F8 Load8(const float* p) { return {_mm256_loadu_ps(p)}; }
[[gnu::always_inline]] inline void Store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
[[gnu::always_inline]] inline F8 Load8First(const float* p, int n) {
  return {_mm256_maskload_ps(p, FirstMask8(n))};
}
// A masked store is slow on AMD processors: use it only for n < 8.
[[gnu::always_inline]] inline void StoreFirst(float* p, int n, F8 a) {
  if (n >= 8) {
    Store(p, a);
  } else {
    _mm256_maskstore_ps(p, FirstMask8(n), a.v);
  }
}
[[gnu::always_inline]] inline F8 EvenBf16x8(const uint16_t* p) {
  return {_mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16))};
}
[[gnu::always_inline]] inline F8 OddBf16x8(const uint16_t* p) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(
      _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), upper))};
}
[[gnu::always_inline]] inline F8 LoadBf16x8(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
[[gnu::always_inline]] inline F8 LoadF16x8(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// a * b + c in one rounding.
[[gnu::always_inline]] inline F8 Fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
[[gnu::always_inline]] inline F8 Add(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F8 Sub(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F8 Mul(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F8 Div(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
// Max and Min give b if either operand is a NaN.
[[gnu::always_inline]] inline F8 Max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F8 Min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline F8 RoundToNearest(F8 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for whole n, -126 <= n <= 127.
[[gnu::always_inline]] inline F8 PowerOf2(F8 n) {
  return {_mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
// 2^n from the number 1.5 * 2^23 + 127 + n, for whole n, -126 <= n <= 127.
[[gnu::always_inline]] inline F8 PowerOf2OfShifted(F8 shifted) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23))};
}
// x < y ? a : b, lane by lane.
[[gnu::always_inline]] inline F8 SelectLess(F8 x, F8 y, F8 a, F8 b) {
  return {_mm256_blendv_ps(b.v, a.v, _mm256_cmp_ps(x.v, y.v, _CMP_LT_OQ))};
}
// Lane i < n ? a : b.
[[gnu::always_inline]] inline F8 SelectFirst(int n, F8 a, F8 b) {
  return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(FirstMask8(n)))};
}
[[gnu::always_inline]] inline float ReduceMax(F8 a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
[[gnu::always_inline]] inline float ReduceAdd(F8 a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

// ---- Integers: 8 of 32 bits, and 8 quads of 8 bits, one per lane.
struct I32x8 {
  __m256i v;
};
struct Quads8 {
  __m256i v;
};
[[gnu::always_inline]] inline I32x8 Add(I32x8 a, I32x8 b) { return {_mm256_add_epi32(a.v, b.v)}; }
[[gnu::always_inline]] inline F8 ToFloat(I32x8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
[[gnu::always_inline]] inline I32x8 ToInt(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }
[[gnu::always_inline]] inline int32_t ReduceAdd(I32x8 a) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
[[gnu::always_inline]] inline void StoreInt8(int8_t* p, I32x8 a) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a.v),
                                        _mm256_extracti128_si256(a.v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
[[gnu::always_inline]] inline Quads8 LoadQuads8(const void* p) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(p))};
}
[[gnu::always_inline]] inline Quads8 LowerHalves(Quads8 a) {
  return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))};
}
[[gnu::always_inline]] inline Quads8 UpperHalves(Quads8 a) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))};
}
[[gnu::always_inline]] inline Quads8 FlipTopBits(Quads8 a) {
  return {_mm256_xor_si256(a.v, _mm256_set1_epi8(-128))};
}
[[gnu::always_inline]] inline Quads8 Magnitudes(Quads8 a) { return {_mm256_abs_epi8(a.v)}; }
// a where `of` > 0, -a where `of` < 0, 0 where it is 0.
[[gnu::always_inline]] inline Quads8 WithSignsOf(Quads8 a, Quads8 of) {
  return {_mm256_sign_epi8(a.v, of.v)};
}
inline constexpr bool kDotsUnsigned = false;
// acc + the dot product of the lanes' quads; u is unsigned, s signed. REQUIRES: u <= 128.
[[gnu::always_inline]] inline I32x8 DotQuads(I32x8 acc, Quads8 u, Quads8 s) {
  const __m256i pairs = _mm256_maddubs_epi16(u.v, s.v);
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
// The same for signed quads. REQUIRES: magnitudes of at most 128 in a, 127 in b.
[[gnu::always_inline]] inline I32x8 DotSigned(I32x8 acc, Quads8 a, Quads8 b) {
  return DotQuads(acc, Magnitudes(a), WithSignsOf(b, a));
}
// DotQuads for two products. u <= 15, so the sum of four products fits 16 bits.
[[gnu::always_inline]] inline I32x8 DotTwoQuads(I32x8 acc, Quads8 u0, Quads8 s0, Quads8 u1,
                                                Quads8 s1) {
  const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(u0.v, s0.v),
                                         _mm256_maddubs_epi16(u1.v, s1.v));
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}

// 8 pairs of 16 bits.
struct I16Pairs8 {
  __m256i v;
};
// Widens 8 pairs of signed 8-bit numbers.
[[gnu::always_inline]] inline I16Pairs8 WidenPairs8(const void* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
// Widens, from 8 times 8 numbers of 4 bits, the one in each 16 bits that begins at bit kShift.
template <int kShift>
[[gnu::always_inline]] inline I16Pairs8 FourBitPairs(Quads8 a) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.v, kShift), _mm256_set1_epi16(15))};
}
// acc + a0 b0 + a1 b1 lane by lane.
[[gnu::always_inline]] inline I32x8 DotPairs(I32x8 acc, I16Pairs8 a, I16Pairs8 b) {
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(a.v, b.v))};
}
// REQUIRES: within int16.
[[gnu::always_inline]] inline void StoreInt16(int16_t* p, I32x8 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1)));
}
[[gnu::always_inline]] inline I32x8 Subtract(I32x8 a, I32x8 b) {
  return {_mm256_sub_epi32(a.v, b.v)};
}
[[gnu::always_inline]] inline I32x8 Multiply(I32x8 a, I32x8 b) {
  return {_mm256_mullo_epi32(a.v, b.v)};
}
[[gnu::always_inline]] inline I32x8 And(I32x8 a, I32x8 b) { return {_mm256_and_si256(a.v, b.v)}; }
[[gnu::always_inline]] inline F8 AsFloat(I32x8 a) { return {_mm256_castsi256_ps(a.v)}; }
[[gnu::always_inline]] inline I32x8 LoadInt16x8(const int16_t* p) {
  return {_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
[[gnu::always_inline]] inline I32x8 LoadInts8(const float* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
[[gnu::always_inline]] inline void StoreInts(float* p, I32x8 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}

#ifndef DS_PAIRED

using I32 = I32x8;
using I16Pairs = I16Pairs8;
[[gnu::always_inline]] inline I16Pairs WidenPairs(const void* p) { return WidenPairs8(p); }
[[gnu::always_inline]] inline I16Pairs Set1Pair16(int32_t pair) {
  return {_mm256_set1_epi32(pair)};
}
[[gnu::always_inline]] inline I32 LoadInts(const float* p) { return LoadInts8(p); }
[[gnu::always_inline]] inline I32 LoadInt16(const int16_t* p) { return LoadInt16x8(p); }
using Quads = Quads8;
[[gnu::always_inline]] inline I32 Set1Int(int32_t x) { return {_mm256_set1_epi32(x)}; }
[[gnu::always_inline]] inline Quads LoadQuads(const void* p) { return LoadQuads8(p); }
[[gnu::always_inline]] inline Quads Set1Quad(int32_t quad) { return {_mm256_set1_epi32(quad)}; }

using F32 = F8;
inline constexpr int kLanes = 8;
[[gnu::always_inline]] inline F32 Zero() { return Zero8(); }
[[gnu::always_inline]] inline F32 Set1(float x) { return Set8(x); }
[[gnu::always_inline]] inline F32 Load(const float* p) { return Load8(p); }
[[gnu::always_inline]] inline F32 LoadFirst(const float* p, int n) { return Load8First(p, n); }
[[gnu::always_inline]] inline F32 LoadBf16(const uint16_t* p) { return LoadBf16x8(p); }
[[gnu::always_inline]] inline F32 EvenBf16(const uint16_t* p) { return EvenBf16x8(p); }
[[gnu::always_inline]] inline F32 OddBf16(const uint16_t* p) { return OddBf16x8(p); }
[[gnu::always_inline]] inline F32 LoadF16(const uint16_t* p) { return LoadF16x8(p); }

#endif

}  // namespace diffserve::DS_ISA
