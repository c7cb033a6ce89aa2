// SPDX-License-Identifier: Apache-2.0
// The softmax of a row of scores, as exponents of 2, by ranges of slots. Only *.isa.cc files
// include this.
#pragma once

#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

struct RangeSoftmax {
  float max;
  float sum;
};

// Scores become p = 2^(score - maximum of the range). Slots before `first` and from `seen` on may
// hold anything and count as -infinity. Vectors wholly before `first` stay as they are.
inline RangeSoftmax SoftmaxOfRange(float* p, int first, int seen) {
  constexpr float kInfinity = __builtin_inff();
  const int begin = first / kLanes * kLanes;
  const int whole = seen / kLanes * kLanes;
  if (begin < first)
    Store(p + begin, SelectFirst(first - begin, Set1(-kInfinity), Load(p + begin)));
  F32 largest = Set1(-kInfinity);
  F32 largest_odd = largest;
  int vector = begin;
  for (; vector + 2 * kLanes <= whole; vector += 2 * kLanes) {
    largest = Max(largest, Load(p + vector));
    largest_odd = Max(largest_odd, Load(p + vector + kLanes));
  }
  if (vector < whole) largest = Max(largest, Load(p + vector));
  largest = Max(largest, largest_odd);
  if (whole < seen) {
    Store(p + whole, SelectFirst(seen - whole, Load(p + whole), Set1(-kInfinity)));
    largest = Max(largest, Load(p + whole));
  }
  const float max = ReduceMax(largest);
  const F32 subtracted = Set1(max == -kInfinity ? 0.0f : max);
  F32 sum = Zero();
  for (int i = begin; i < seen; i += kLanes) {
    const F32 value = Exp2OfNegative(Sub(Load(p + i), subtracted));
    Store(p + i, value);
    sum = Add(sum, value);
  }
  return {max, ReduceAdd(sum)};
}

// Factors that turn each p of ranges [first, ranges) into probabilities among all: 2^(the range's
// maximum - overall maximum) / overall sum. `factors` is written in whole vectors.
inline void FactorsOfRanges(const float* max_of, const float* sum_of, int first, int ranges,
                            float* factors) {
  const int begin = first / kLanes * kLanes;
  float max = -__builtin_inff();
  for (int range = first; range < ranges; ++range) max = max_of[range] > max ? max_of[range] : max;
  for (int range = begin; range < ranges; range += kLanes)
    Store(factors + range, Exp2OfNegative(Sub(Load(max_of + range), Set1(max))));
  float sum = 0;
  for (int range = first; range < ranges; ++range) sum += sum_of[range] * factors[range];
  const F32 per_sum = Set1(1.0f / sum);
  for (int range = begin; range < ranges; range += kLanes)
    Store(factors + range, Mul(Load(factors + range), per_sum));
}

}  // namespace diffserve::DS_ISA
