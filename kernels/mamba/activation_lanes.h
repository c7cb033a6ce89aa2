// SPDX-License-Identifier: Apache-2.0
// SiLU, softplus and the decay of a state, lane by lane. Only *.isa.cc files include this.
#pragma once

#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

[[gnu::always_inline]] inline F32 Silu(F32 z) {
  return Div(z, Add(Set1(1.0f), Exp(Sub(Zero(), z))));
}

// log(1 + exp(v)) within 4 ulp; results below 1e-37 within 2e-38. Computed as max(v, 0) + log(1 +
// u) with u = exp(-|v|). From 20 on it is v itself, since log(1 + u) is less than half of v's last
// bit.
[[gnu::always_inline]] inline F32 Softplus(F32 v) {
  const F32 u = ExpOfBounded(Min(v, Sub(Zero(), v)));  // a NaN in the second operand passes through
  // log(1 + u) = 2 atanh(w) with w = u / (2 + u), and atanh(w) / w = 1 + z P(z) with z = w^2 <=
  // 1/9.
  const F32 w = Div(u, Add(Set1(2.0f), u));
  const F32 z = Mul(w, w);
  F32 poly = Set1(0.13425749f);
  poly = Fma(poly, z, Set1(0.1411831f));
  poly = Fma(poly, z, Set1(0.2000378f));
  poly = Fma(poly, z, Set1(0.3333332f));
  const F32 twice = Add(w, w);
  return Add(Max(Zero(), v), Fma(Mul(twice, z), poly, twice));
}

// 2^x within 1.2e-7 of itself for -126 <= x <= 0, and 1 for 0; exactly 0 below (-infinity
// included); NaN only for NaN. Apart from rounding, 1 - 2^x is within 1.3e-8 of itself. A slowly
// decaying state accumulates that error over thousands of steps, where Exp2OfNegative's 6e-6 would
// show. REQUIRES: x <= 0.
[[gnu::always_inline]] inline F32 Decay(F32 x) {
  constexpr float kLowest = -126.0f;
  const F32 bounded = Max(Set1(kLowest), x);  // a NaN in the second operand passes through
  const F32 shift = Set1(12582912.0f + 127.0f);
  const F32 shifted = Add(bounded, shift);  // rounded to a whole number
  const F32 r = Sub(bounded, Sub(shifted, shift));
  F32 poly = Set1(0.00015453163f);
  poly = Fma(poly, r, Set1(0.0013390863f));
  poly = Fma(poly, r, Set1(0.009618083f));
  poly = Fma(poly, r, Set1(0.05550357f));
  poly = Fma(poly, r, Set1(0.2402265f));
  poly = Fma(poly, r, Set1(0.6931472f));
  poly = Fma(poly, r, Set1(1.0f));
  return SelectLess(x, Set1(kLowest), Zero(), Mul(poly, PowerOf2OfShifted(shifted)));
}

}  // namespace diffserve::DS_ISA
