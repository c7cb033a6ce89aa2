// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/simd.h"
#include "kernels/ops/rowwise_kernel.h"

namespace diffserve::DS_ISA {
namespace {

// Four chains, joined in pairs: an order that depends only on the width.
float Sum(const float* x, int width) {
  F32 sums[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int i = 0, step = 0; i < width; i += kLanes, ++step)
    sums[step % 4] = Add(sums[step % 4], LoadFirst(x + i, MinInt(width - i, kLanes)));
  return ReduceAdd(Add(Add(sums[0], sums[1]), Add(sums[2], sums[3])));
}

// Sum of (x - mean)^2, by the same chains.
float SumOfSquaredDeviations(const float* x, float mean, int width) {
  F32 sums[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int i = 0, step = 0; i < width; i += kLanes, ++step) {
    const int n = MinInt(width - i, kLanes);
    const F32 deviation = SelectFirst(n, Sub(LoadFirst(x + i, n), Set1(mean)), Zero());
    sums[step % 4] = Fma(deviation, deviation, sums[step % 4]);
  }
  return ReduceAdd(Add(Add(sums[0], sums[1]), Add(sums[2], sums[3])));
}

// Sum of x^2, by the same chains.
float SumOfSquares(const float* x, int width) {
  F32 sums[4] = {Zero(), Zero(), Zero(), Zero()};
  int i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) {
      const F32 value = Load(x + i + chain * kLanes);
      sums[chain] = Fma(value, value, sums[chain]);
    }
  }
  for (int chain = 0; i < width; i += kLanes, ++chain) {
    const F32 value = LoadFirst(x + i, width - i < kLanes ? width - i : kLanes);
    sums[chain] = Fma(value, value, sums[chain]);
  }
  return ReduceAdd(Add(Add(sums[0], sums[1]), Add(sums[2], sums[3])));
}

// The sums of the second, fourth and sixth powers: two chains each, joined at the end.
struct PowerSums {
  float second, fourth, sixth;
};

PowerSums SumPowers(const float* x, int width) {
  F32 second[2] = {Zero(), Zero()}, fourth[2] = {Zero(), Zero()}, sixth[2] = {Zero(), Zero()};
  for (int i = 0, step = 0; i < width; i += kLanes, ++step) {
    const int chain = step % 2;
    const F32 value = LoadFirst(x + i, width - i < kLanes ? width - i : kLanes);
    const F32 square = Mul(value, value);
    const F32 cube = Mul(square, value);
    second[chain] = Add(second[chain], square);
    fourth[chain] = Fma(square, square, fourth[chain]);
    sixth[chain] = Fma(cube, cube, sixth[chain]);
  }
  return {ReduceAdd(Add(second[0], second[1])), ReduceAdd(Add(fourth[0], fourth[1])),
          ReduceAdd(Add(sixth[0], sixth[1]))};
}

// For tokens [begin, end).

void RmsNorm(const RmsNormArgs<float>& args, int begin, int end) {
  const int width = args.width;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t index = args.indices == nullptr ? token : args.indices[token];
    const float* x = args.x + index * width;
    float* out = args.out + token * width;
    // Stage 1: the factor that brings the mean square to 1.
    const float mean = SumOfSquares(x, width) / static_cast<float>(width);
    const F32 factor = Set1(1.0f / __builtin_sqrtf(mean + args.eps));
    // Stage 2: scaling by the factor and the weight.
    for (int i = 0; i < width; i += kLanes) {
      const int n = width - i < kLanes ? width - i : kLanes;
      StoreFirst(out + i, n, Mul(Mul(LoadFirst(x + i, n), factor), LoadFirst(args.weight + i, n)));
    }
  }
}

void LayerNorm(const LayerNormArgs<float>& args, int begin, int end) {
  const int width = args.width;
  const float count = static_cast<float>(width);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t index = args.indices == nullptr ? token : args.indices[token];
    const float* x = args.x + index * width;
    float* out = args.out + token * width;
    // Stage 1: the mean.
    const float mean = Sum(x, width) / count;
    // Stage 2: the factor that brings the variance to 1.
    const float variance = SumOfSquaredDeviations(x, mean, width) / count;
    const F32 factor = Set1(1.0f / __builtin_sqrtf(variance + args.eps));
    // Stage 3: scaling by the factor and the weight, and the bias.
    for (int i = 0; i < width; i += kLanes) {
      const int n = MinInt(width - i, kLanes);
      const F32 deviation = Sub(LoadFirst(x + i, n), Set1(mean));
      StoreFirst(
          out + i, n,
          Fma(Mul(deviation, factor), LoadFirst(args.weight + i, n), LoadFirst(args.bias + i, n)));
    }
  }
}

void SiluMul(const SiluMulArgs<float>& args, int begin, int end) {
  const int width = args.width;
  for (int64_t token = begin; token < end; ++token) {
    const float* gate = args.x + token * 2 * width;
    const float* up = gate + width;
    float* out = args.out + token * width;
    for (int i = 0; i < width; i += kLanes) {
      const int n = width - i < kLanes ? width - i : kLanes;
      const F32 z = LoadFirst(gate + i, n);
      const F32 silu = Div(z, Add(Set1(1.0f), Exp(Sub(Zero(), z))));
      StoreFirst(out + i, n, Mul(silu, LoadFirst(up + i, n)));
    }
  }
}

void PolyNormMul(const PolyNormMulArgs<float>& args, int begin, int end) {
  const int width = args.width;
  const float count = static_cast<float>(width);
  for (int64_t token = begin; token < end; ++token) {
    const float* gate = args.x + token * 2 * width;
    const float* up = gate + width;
    float* out = args.out + token * width;
    // Stage 1: the coefficients of the polynomial.
    const PowerSums sums = SumPowers(gate, width);
    const F32 cubic = Set1(args.weight[0] / __builtin_sqrtf(sums.sixth / count + args.eps));
    const F32 square = Set1(args.weight[1] / __builtin_sqrtf(sums.fourth / count + args.eps));
    const F32 linear = Set1(args.weight[2] / __builtin_sqrtf(sums.second / count + args.eps));
    const F32 bias = Set1(args.bias);
    // Stage 2: the polynomial of the gate times up.
    for (int i = 0; i < width; i += kLanes) {
      const int n = width - i < kLanes ? width - i : kLanes;
      const F32 z = LoadFirst(gate + i, n);
      const F32 value = Fma(Fma(Fma(cubic, z, square), z, linear), z, bias);
      StoreFirst(out + i, n, Mul(value, LoadFirst(up + i, n)));
    }
  }
}

void Sigmoid(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int n = count - i < kLanes ? static_cast<int>(count - i) : kLanes;
    const F32 z = LoadFirst(x + i, n);
    StoreFirst(x + i, n, Div(Set1(1.0f), Add(Set1(1.0f), Exp(Sub(Zero(), z)))));
  }
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const RowwiseKernels& RowwiseKernels::DS_ISA() {
  static constexpr RowwiseKernels kKernels = {.rms_norm = DS_ISA::RmsNorm,
                                              .layer_norm = DS_ISA::LayerNorm,
                                              .silu_mul = DS_ISA::SiluMul,
                                              .poly_norm_mul = DS_ISA::PolyNormMul,
                                              .sigmoid = DS_ISA::Sigmoid};
  return kKernels;
}

}  // namespace diffserve
