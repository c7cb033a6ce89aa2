// SPDX-License-Identifier: Apache-2.0
// 16 lanes in two AVX2 registers: the level "paired16". It runs the kernels' 16-lane code,
// operation for operation as AVX-512 does, on machines without AVX-512. Included only by simd.h.
#pragma once

#include "kernels/base/simd_avx2.h"

namespace diffserve::DS_ISA {

struct F32 {
  F8 lo;
  F8 hi;
};
inline constexpr int kLanes = 16;

[[gnu::always_inline]] inline F32 Zero() { return {Zero8(), Zero8()}; }
[[gnu::always_inline]] inline F32 Set1(float x) { return {Set8(x), Set8(x)}; }
[[gnu::always_inline]] inline F32 Load(const float* p) { return {Load8(p), Load8(p + 8)}; }
[[gnu::always_inline]] inline void Store(float* p, F32 a) {
  Store(p, a.lo);
  Store(p + 8, a.hi);
}
[[gnu::always_inline]] inline F32 LoadFirst(const float* p, int n) {
  return {Load8First(p, n), n > 8 ? Load8First(p + 8, n - 8) : Zero8()};
}
[[gnu::always_inline]] inline void StoreFirst(float* p, int n, F32 a) {
  StoreFirst(p, n, a.lo);
  if (n > 8) StoreFirst(p + 8, n - 8, a.hi);
}
[[gnu::always_inline]] inline F32 LoadBf16(const uint16_t* p) {
  return {LoadBf16x8(p), LoadBf16x8(p + 8)};
}
[[gnu::always_inline]] inline F32 EvenBf16(const uint16_t* p) {
  return {EvenBf16x8(p), EvenBf16x8(p + 16)};
}
[[gnu::always_inline]] inline F32 OddBf16(const uint16_t* p) {
  return {OddBf16x8(p), OddBf16x8(p + 16)};
}
[[gnu::always_inline]] inline F32 LoadF16(const uint16_t* p) {
  return {LoadF16x8(p), LoadF16x8(p + 8)};
}
[[gnu::always_inline]] inline F32 Fma(F32 a, F32 b, F32 c) {
  return {Fma(a.lo, b.lo, c.lo), Fma(a.hi, b.hi, c.hi)};
}
[[gnu::always_inline]] inline F32 Add(F32 a, F32 b) { return {Add(a.lo, b.lo), Add(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 Sub(F32 a, F32 b) { return {Sub(a.lo, b.lo), Sub(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 Mul(F32 a, F32 b) { return {Mul(a.lo, b.lo), Mul(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 Div(F32 a, F32 b) { return {Div(a.lo, b.lo), Div(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 Max(F32 a, F32 b) { return {Max(a.lo, b.lo), Max(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 Min(F32 a, F32 b) { return {Min(a.lo, b.lo), Min(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 RoundToNearest(F32 a) {
  return {RoundToNearest(a.lo), RoundToNearest(a.hi)};
}
[[gnu::always_inline]] inline F32 PowerOf2(F32 n) { return {PowerOf2(n.lo), PowerOf2(n.hi)}; }
[[gnu::always_inline]] inline F32 PowerOf2OfShifted(F32 shifted) {
  return {PowerOf2OfShifted(shifted.lo), PowerOf2OfShifted(shifted.hi)};
}
[[gnu::always_inline]] inline F32 SelectLess(F32 x, F32 y, F32 a, F32 b) {
  return {SelectLess(x.lo, y.lo, a.lo, b.lo), SelectLess(x.hi, y.hi, a.hi, b.hi)};
}
[[gnu::always_inline]] inline F32 SelectFirst(int n, F32 a, F32 b) {
  return {SelectFirst(n, a.lo, b.lo), SelectFirst(n - 8, a.hi, b.hi)};
}
[[gnu::always_inline]] inline float ReduceMax(F32 a) { return ReduceMax(Max(a.lo, a.hi)); }
[[gnu::always_inline]] inline float ReduceAdd(F32 a) { return ReduceAdd(Add(a.lo, a.hi)); }

struct I32 {
  I32x8 lo;
  I32x8 hi;
};
struct Quads {
  Quads8 lo;
  Quads8 hi;
};
[[gnu::always_inline]] inline I32 Set1Int(int32_t x) {
  return {{_mm256_set1_epi32(x)}, {_mm256_set1_epi32(x)}};
}
[[gnu::always_inline]] inline I32 Add(I32 a, I32 b) { return {Add(a.lo, b.lo), Add(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 ToFloat(I32 a) { return {ToFloat(a.lo), ToFloat(a.hi)}; }
[[gnu::always_inline]] inline I32 ToInt(F32 a) { return {ToInt(a.lo), ToInt(a.hi)}; }
[[gnu::always_inline]] inline int32_t ReduceAdd(I32 a) { return ReduceAdd(Add(a.lo, a.hi)); }
[[gnu::always_inline]] inline void StoreInt8(int8_t* p, I32 a) {
  StoreInt8(p, a.lo);
  StoreInt8(p + 8, a.hi);
}
[[gnu::always_inline]] inline Quads LoadQuads(const void* p) {
  return {LoadQuads8(p), LoadQuads8(static_cast<const char*>(p) + 32)};
}
[[gnu::always_inline]] inline Quads Set1Quad(int32_t quad) {
  return {{_mm256_set1_epi32(quad)}, {_mm256_set1_epi32(quad)}};
}
[[gnu::always_inline]] inline Quads LowerHalves(Quads a) {
  return {LowerHalves(a.lo), LowerHalves(a.hi)};
}
[[gnu::always_inline]] inline Quads UpperHalves(Quads a) {
  return {UpperHalves(a.lo), UpperHalves(a.hi)};
}
[[gnu::always_inline]] inline Quads FlipTopBits(Quads a) {
  return {FlipTopBits(a.lo), FlipTopBits(a.hi)};
}
[[gnu::always_inline]] inline I32 DotQuads(I32 acc, Quads u, Quads s) {
  return {DotQuads(acc.lo, u.lo, s.lo), DotQuads(acc.hi, u.hi, s.hi)};
}
[[gnu::always_inline]] inline I32 DotSigned(I32 acc, Quads a, Quads b) {
  return {DotSigned(acc.lo, a.lo, b.lo), DotSigned(acc.hi, a.hi, b.hi)};
}
struct I16Pairs {
  I16Pairs8 lo;
  I16Pairs8 hi;
};
[[gnu::always_inline]] inline I16Pairs WidenPairs(const void* p) {
  return {WidenPairs8(p), WidenPairs8(static_cast<const char*>(p) + 16)};
}
template <int kShift>
[[gnu::always_inline]] inline I16Pairs FourBitPairs(Quads a) {
  return {FourBitPairs<kShift>(a.lo), FourBitPairs<kShift>(a.hi)};
}
[[gnu::always_inline]] inline I16Pairs Set1Pair16(int32_t pair) {
  return {{_mm256_set1_epi32(pair)}, {_mm256_set1_epi32(pair)}};
}
[[gnu::always_inline]] inline I32 DotPairs(I32 acc, I16Pairs a, I16Pairs b) {
  return {DotPairs(acc.lo, a.lo, b.lo), DotPairs(acc.hi, a.hi, b.hi)};
}
[[gnu::always_inline]] inline void StoreInt16(int16_t* p, I32 a) {
  StoreInt16(p, a.lo);
  StoreInt16(p + 8, a.hi);
}
[[gnu::always_inline]] inline I32 Subtract(I32 a, I32 b) {
  return {Subtract(a.lo, b.lo), Subtract(a.hi, b.hi)};
}
[[gnu::always_inline]] inline I32 Multiply(I32 a, I32 b) {
  return {Multiply(a.lo, b.lo), Multiply(a.hi, b.hi)};
}
[[gnu::always_inline]] inline I32 And(I32 a, I32 b) { return {And(a.lo, b.lo), And(a.hi, b.hi)}; }
[[gnu::always_inline]] inline F32 AsFloat(I32 a) { return {AsFloat(a.lo), AsFloat(a.hi)}; }
[[gnu::always_inline]] inline I32 LoadInt16(const int16_t* p) {
  return {LoadInt16x8(p), LoadInt16x8(p + 8)};
}
[[gnu::always_inline]] inline I32 LoadInts(const float* p) {
  return {LoadInts8(p), LoadInts8(p + 8)};
}
[[gnu::always_inline]] inline void StoreInts(float* p, I32 a) {
  StoreInts(p, a.lo);
  StoreInts(p + 8, a.hi);
}
[[gnu::always_inline]] inline I32 DotTwoQuads(I32 acc, Quads u0, Quads s0, Quads u1, Quads s1) {
  return {DotTwoQuads(acc.lo, u0.lo, s0.lo, u1.lo, s1.lo),
          DotTwoQuads(acc.hi, u0.hi, s0.hi, u1.hi, s1.hi)};
}

}  // namespace diffserve::DS_ISA
