// SPDX-License-Identifier: Apache-2.0
// Quantisation in a level's kernels: rows that share a scale, weights of a range, logits. Only
// *.isa.cc files include this.
#pragma once

#include "kernels/attention/attention_memory.h"
#include "kernels/attention/hadamard.h"
#include "kernels/attention/int8_row.h"
#include "kernels/attention/kv_codec.h"
#include "kernels/attention/logit_quant.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

constexpr float kMinScaled = Int8Row::kMinScaled;

// Calls store(i, code) for each of the values and returns their scale. If one of them is not
// finite, the scale is a NaN and the codes are 0.
template <typename StoreCode>
float QuantiseRow(const float* values, int count, StoreCode store) {
  float largest = 0;
  float poison = 0;
  for (int i = 0; i < count; ++i) {
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    largest = magnitude > largest ? magnitude : largest;
    poison += values[i] * 0.0f;
  }
  const Int8Row row = Int8Row::Of(largest, poison);
  for (int i = 0; i < count; ++i) store(i, static_cast<int8_t>(row.CodeOf(values[i])));
  return row.scale;
}

// The same in four bits; the result holds the step and the zero.
template <typename StoreCode>
float QuantiseFourBits(const float* values, int count, StoreCode store) {
  float min = 0;
  float max = 0;
  float poison = 0;
  for (int i = 0; i < count; ++i) {
    min = values[i] < min ? values[i] : min;
    max = values[i] > max ? values[i] : max;
    poison += values[i] * 0.0f;
  }
  const float step = FourBits::StepOf(max / FourBits::kMaxCode - min / FourBits::kMaxCode);
  poison += step * 0.0f;
  if (poison != 0 || !(step > kMinScaled)) {  // or a NaN
    for (int i = 0; i < count; ++i) store(i, uint8_t{0});
    return poison;
  }
  const float inverse = 1 / step;
  // The addition rounds to nearest even and leaves the whole number in the low bits.
  constexpr float kShift = 12582912.0f;
  const float zero = -min * inverse * FourBits::kZeroUnits + kShift - kShift;
  for (int i = 0; i < count; ++i) {
    const float code = values[i] * inverse + zero / FourBits::kZeroUnits;
    const float within = code < 0 ? 0.0f : code > FourBits::kMaxCode ? FourBits::kMaxCode : code;
    store(i, static_cast<uint8_t>(__builtin_bit_cast(uint32_t, within + kShift)));
  }
  return FourBits::ScaleOf(step, static_cast<int>(zero));
}

// Scales of kLanes slots.
struct FourBitScales {
  I32 zeros;
  F32 steps;
  [[gnu::always_inline]] explicit FourBitScales(const float* scales)
      : zeros(And(LoadInts(scales), Set1Int(FourBits::kZeroMask))),
        steps(AsFloat(And(LoadInts(scales), Set1Int(static_cast<int>(~FourBits::kZeroMask))))) {}
};

// Hadamard-transforms each `part` numbers of a row.
inline void TransformParts(float* row, int count, int part) {
  alignas(64) float scratch[kMaxTransform];
  for (int begin = 0; begin < count; begin += part) Hadamard(row + begin, part, scratch);
}

struct QueryCodes {
  float scale;
  int32_t sum;  // of the codes
};

// Codes of a query, with kTransforms after K's transform. Four dims go to each `stride` of `to`.
template <bool kTransforms>
QueryCodes QuantiseQuery(const float* q, int head_dim, int32_t* to, int stride) {
  alignas(64) float transformed[kMaxTransform];
  if constexpr (kTransforms) {
    __builtin_memcpy(transformed, q, static_cast<size_t>(head_dim) * sizeof(float));
    TransformParts(transformed, head_dim, head_dim);
    q = transformed;
  }
  int32_t sum = 0;
  const float scale = QuantiseRow(q, head_dim, [&](int d, int8_t code) {
    reinterpret_cast<int8_t*>(to + d / 4 * stride)[d % 4] = code;
    sum += code;
  });
  return {scale, sum};
}

// Weights of slots [first, end), times the scales of V's codes there, as 16 bits relative to the
// largest. scales_of(i) points to the scales of slots from i on. In the vectors at both ends, codes
// outside [first, end) are 0.
template <bool kIs4Bits, typename ScalesOf>
CodeWeights QuantiseScaled(const float* weights, int first, int end, ScalesOf scales_of,
                           int16_t* codes) {
  constexpr float kMaxCode = 32767;
  const int begin = first / kLanes * kLanes;
  alignas(64) float scaled[kAttentionRangeSlots];
  F32 largest = Zero();
  F32 poison = Zero();
  for (int i = begin; i < end; i += kLanes) {
    const F32 scale = kIs4Bits ? FourBitScales(scales_of(i)).steps : Load(scales_of(i));
    F32 weight = Mul(Load(weights + i), scale);
    if (i < first) weight = SelectFirst(first - i, Zero(), weight);
    if (end - i < kLanes) weight = SelectFirst(end - i, weight, Zero());
    largest = Max(largest, Max(weight, Sub(Zero(), weight)));
    poison = Fma(weight, Zero(), poison);
    Store(scaled + i, weight);
  }
  const float abs_max = ReduceMax(largest);
  const float not_finite = ReduceAdd(poison);  // NaN or 0
  const bool is_zero = !(abs_max > kMinScaled) || not_finite != 0.0f;
  const F32 inverse = Set1(is_zero ? 0.0f : kMaxCode / abs_max);
  I32 zeros = Set1Int(0);
  for (int i = begin; i < end; i += kLanes) {
    // Max turns a NaN into a code too, so that no sum overflows.
    const I32 code = ToInt(Max(Mul(Load(scaled + i), inverse), Set1(-kMaxCode)));
    StoreInt16(codes + i, code);
    if constexpr (kIs4Bits) zeros = Add(zeros, Multiply(code, FourBitScales(scales_of(i)).zeros));
  }
  return {(is_zero ? 0.0f : abs_max / kMaxCode) + not_finite, ReduceAdd(zeros)};
}

// Converts integers to floats in place.
template <bool kIs4Bits>
void SumsToFloat(float* sums, int count, const CodeWeights& weights) {
  constexpr int kUnits = kIs4Bits ? FourBits::kZeroUnits : 1;
  const F32 scale = Set1(weights.scale / kUnits);
  for (int i = 0; i < count; i += kLanes) {
    I32 sum = LoadInts(sums + i);
    if constexpr (kIs4Bits) sum = Subtract(Multiply(sum, Set1Int(kUnits)), Set1Int(weights.zeros));
    StoreFirst(sums + i, MinInt(kLanes, count - i), Mul(ToFloat(sum), scale));
  }
}

// What quantising logits [first, end) needs: the largest magnitude, or with kAnchored the largest
// logit. It may miss a NaN, which remains a NaN in the logits.
inline float ExtentOf(const float* logits, int first, int end, LogitScale scale) {
  const bool is_anchored = scale == LogitScale::kAnchored;
  F32 largest = Set1(is_anchored ? -__builtin_inff() : 0.0f);
  for (int i = first / kLanes * kLanes; i < end; i += kLanes) {
    const F32 logit = Load(logits + i);
    F32 extent = is_anchored ? logit : Max(logit, Sub(Zero(), logit));
    if (i < first) extent = SelectFirst(first - i, largest, extent);
    largest = Max(largest, SelectFirst(end - i, extent, largest));
  }
  return ReduceMax(largest);
}

// Logits [first, end) become quantised exponents of 2; with kAnchored minus the largest. May change
// other elements of their vectors.
inline void QuantiseLogits(float* logits, int first, int end, float extent,
                           const LogitQuant& quant) {
  const int begin = first / kLanes * kLanes;
  constexpr float kLog2E = 1.44269504f;
  constexpr float kReach = kLogitReach;
  const float levels = static_cast<float>(quant.levels());
  if (quant.scale == LogitScale::kAnchored) {
    const F32 step = Set1(-kLog2E * kReach / levels);
    for (int i = begin; i < end; i += kLanes) {
      const F32 distance = Min(Set1(kReach), Sub(Set1(extent), Load(logits + i)));
      const F32 code = RoundToNearest(Mul(Mul(distance, Set1(levels)), Set1(1 / kReach)));
      Store(logits + i, Mul(code, step));
    }
    return;
  }
  if (extent == 0) return;  // all are 0
  const F32 step = Set1(kLog2E * (extent / levels));
  for (int i = begin; i < end; i += kLanes) {
    const F32 code = RoundToNearest(Div(Mul(Load(logits + i), Set1(levels)), Set1(extent)));
    Store(logits + i, Mul(code, step));
  }
}

}  // namespace diffserve::DS_ISA
