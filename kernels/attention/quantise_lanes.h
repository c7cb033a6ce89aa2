// What a level's kernels quantise: rows that share a scale, weights of a range, logits. Only
// *.isa.cc files include this.
#pragma once

#include "kernels/attention/kv_codec.h"
#include "kernels/attention/logit_quant.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

constexpr float kLeastScaled = 0x1p-100f;  // what is smaller counts as 0 beside int8 codes

// Calls store(i, code) for each of the values, and returns their scale; a NaN, and the codes 0, if
// one of them is not finite.
template <typename StoreCode>
float QuantiseRow(const float* values, int count, StoreCode store) {
  float largest = 0;
  float poison = 0;
  for (int i = 0; i < count; ++i) {
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    largest = magnitude > largest ? magnitude : largest;
    poison += values[i] * 0.0f;
  }
  if (poison != 0) largest = 0;  // it is a NaN
  const bool is_zero = !(largest > kLeastScaled);
  const float inverse = is_zero ? 0.0f : Int8Codec::kMost / largest;
  for (int i = 0; i < count; ++i) {
    // The addition rounds to nearest even and leaves the whole number in the low bits.
    const float shifted = is_zero ? 12582912.0f : values[i] * inverse + 12582912.0f;
    store(i, static_cast<int8_t>(__builtin_bit_cast(int32_t, shifted)));
  }
  return (is_zero ? 0.0f : largest / Int8Codec::kMost) + poison;
}

// `weights` of some slots as 16 bits of the largest, and their scale; a NaN if one is not finite.
// Both end at a vector's end, where weights are 0.
inline float QuantiseWeights(const float* weights, int count, int16_t* codes) {
  constexpr float kMost = 32767;
  F32 largest = Zero();
  F32 poison = Zero();
  for (int i = 0; i < count; i += kLanes) {
    const F32 weight = Load(weights + i);
    largest = Max(largest, Max(weight, Sub(Zero(), weight)));
    poison = Fma(weight, Zero(), poison);
  }
  const float not_finite = ReduceAdd(poison);
  const float most = ReduceMax(largest);
  const bool is_zero = !(most > kLeastScaled);
  const F32 inverse = Set1(is_zero ? 0.0f : kMost / most);
  for (int i = 0; i < count; i += kLanes)
    StoreInt16(codes + i, ToInt(Mul(Load(weights + i), inverse)));
  return (is_zero ? 0.0f : most / kMost) + not_finite;
}

// What quantising needs of some logits: the largest magnitude, or of kAnchored the largest. It may
// miss a NaN, which stays one all the same.
inline float ExtentOf(const float* logits, int count, LogitScale scale) {
  const bool is_anchored = scale == LogitScale::kAnchored;
  F32 largest = Set1(is_anchored ? -__builtin_inff() : 0.0f);
  for (int i = 0; i < count; i += kLanes) {
    const F32 logit = Load(logits + i);
    const F32 extent = is_anchored ? logit : Max(logit, Sub(Zero(), logit));
    largest = Max(largest, SelectFirst(count - i, extent, largest));
  }
  return ReduceMax(largest);
}

// Logits become quantised exponents of 2, of kAnchored less the largest. May change what lies
// behind `count` up to a vector's end.
inline void QuantiseLogits(float* logits, int count, float extent, const LogitQuant& quant) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kReach = kLogitReach;
  const float levels = static_cast<float>(quant.levels());
  if (quant.scale == LogitScale::kAnchored) {
    const F32 step = Set1(-kLog2E * kReach / levels);
    for (int i = 0; i < count; i += kLanes) {
      const F32 distance = Min(Set1(kReach), Sub(Set1(extent), Load(logits + i)));
      const F32 code = RoundToNearest(Mul(Mul(distance, Set1(levels)), Set1(1 / kReach)));
      Store(logits + i, Mul(code, step));
    }
    return;
  }
  if (extent == 0) return;  // all are 0
  const F32 step = Set1(kLog2E * (extent / levels));
  for (int i = 0; i < count; i += kLanes) {
    const F32 code = RoundToNearest(Div(Mul(Load(logits + i), Set1(levels)), Set1(extent)));
    Store(logits + i, Mul(code, step));
  }
}

}  // namespace diffserve::DS_ISA
