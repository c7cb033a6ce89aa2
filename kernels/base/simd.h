// SPDX-License-Identifier: Apache-2.0
// The vector layer of the per-ISA kernel files. F32 is kLanes floats, with the same operations and
// rounding at every width, so one kernel source serves 8 lanes (AVX2, NEON, plain) and 16 lanes
// (AVX-512). Fma alone rounds otherwise at "plain".
//
// Only *.isa.cc files include this. Outside namespace diffserve::DS_ISA they call no inline
// function except those of host_device.h: the linker keeps one copy of an inline function, which
// could be the AVX-512 copy, for callers on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

#ifndef DS_ISA
#error "kernel files are compiled once per level with -DDS_ISA=<level>"
#endif

#if defined(__AVX512F__)
#include "kernels/base/simd_avx512.h"
#elif defined(DS_PAIRED)
#include "kernels/base/simd_paired.h"
#elif defined(__AVX2__)
#include "kernels/base/simd_avx2.h"
#elif defined(__aarch64__)
#include "kernels/base/simd_neon.h"
#else
#include "kernels/base/simd_plain.h"
#endif

namespace diffserve::DS_ISA {

constexpr int MinInt(int a, int b) { return a < b ? a : b; }
constexpr int MaxInt(int a, int b) { return a > b ? a : b; }

inline constexpr int kPanelColumns = 2 * kLanes;  // LinearKernels::panel_columns

#if !defined(DS_FMA_ROUNDS_TWICE)
// a * b + c in one rounding at every level.
[[gnu::always_inline]] inline F32 FmaRoundedOnce(F32 a, F32 b, F32 c) { return Fma(a, b, c); }
#endif

// kLanes bfloat16 pairs as float32: element 2i in lane i of `even`, element 2i + 1 in lane i of
// `odd`.
struct F32Pair {
  F32 even;
  F32 odd;
};

[[gnu::always_inline]] inline F32Pair LoadBf16Pairs(const uint16_t* p) {
  return {EvenBf16(p), OddBf16(p)};
}

#if !defined(__AVX512F__)
[[gnu::always_inline]] inline F32 LoadBf16First(const uint16_t* p, int n) {
  alignas(16) uint16_t padded[kLanes] = {};
  for (int i = 0; i < n && i < kLanes; ++i) padded[i] = p[i];
  return LoadBf16(padded);
}
[[gnu::always_inline]] inline F32 LoadF16First(const uint16_t* p, int n) {
  alignas(16) uint16_t padded[kLanes] = {};
  for (int i = 0; i < n && i < kLanes; ++i) padded[i] = p[i];
  return LoadF16(padded);
}
#endif

inline constexpr float kLowestExp = -87.33654f;  // the smallest x whose exp is a normal number

// exp(x) within 2 ulp for kLowestExp <= x <= 88.3; exactly 0 below (-infinity included); NaN only
// for NaN. REQUIRES: x <= 88.3.
[[gnu::always_inline]] inline F32 ExpOfBounded(F32 x) {
  const F32 bounded = Max(Set1(kLowestExp), x);  // a NaN in the second operand passes through
  const F32 n = RoundToNearest(Mul(bounded, Set1(1.44269504f)));
  F32 r = Fma(n, Set1(-0.693359375f), bounded);
  r = Fma(n, Set1(2.12194440e-4f), r);
  F32 poly = Set1(1.9875691500e-4f);
  poly = Fma(poly, r, Set1(1.3981999507e-3f));
  poly = Fma(poly, r, Set1(8.3334519073e-3f));
  poly = Fma(poly, r, Set1(4.1665795894e-2f));
  poly = Fma(poly, r, Set1(1.6666665459e-1f));
  poly = Fma(poly, r, Set1(5.0000001201e-1f));
  poly = Fma(Mul(r, r), poly, Add(r, Set1(1.0f)));
  return SelectLess(x, Set1(kLowestExp), Zero(), Mul(poly, PowerOf2(n)));
}

// 2^x within 5e-7 of itself for -126 <= x <= 0, and 1 for 0; exactly 0 below (-infinity included);
// NaN only for NaN. Fewer operations than ExpOfBounded. REQUIRES: x <= 0.
[[gnu::always_inline]] inline F32 Exp2OfNegative(F32 x) {
  constexpr float kLowest = -126.0f;
  const F32 bounded = Max(Set1(kLowest), x);  // a NaN in the second operand passes through
  const F32 shift = Set1(12582912.0f + 127.0f);
  const F32 shifted = Add(bounded, shift);  // rounded to a whole number
  const F32 r = Sub(bounded, Sub(shifted, shift));
  F32 poly = Set1(0.001112550962716341f);
  poly = Fma(poly, r, Set1(0.009666282683610916f));
  poly = Fma(poly, r, Set1(0.05557400360703468f));
  poly = Fma(poly, r, Set1(0.24022351205348969f));
  poly = Fma(poly, r, Set1(0.693142831325531f));
  poly = Fma(poly, r, Set1(1.0f));
  return SelectLess(x, Set1(kLowest), Zero(), Mul(poly, PowerOf2OfShifted(shifted)));
}

// The same as ExpOfBounded for any x: infinity above 88.37.
[[gnu::always_inline]] inline F32 Exp(F32 x) {
  constexpr float kHighest = 88.37f;
  const F32 result = ExpOfBounded(Min(Set1(kHighest), x));
  return SelectLess(Set1(kHighest), x, Set1(__builtin_inff()), result);
}

}  // namespace diffserve::DS_ISA
