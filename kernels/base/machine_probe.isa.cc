// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/machine_probe_kernel.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

namespace {

constexpr int kChains = 12;

// `is_used` depends on the result, so that the loop cannot be optimised away.
double Operations(bool is_used, int64_t iterations, int a_lane) {
  const double all = static_cast<double>(a_lane) * kChains * kLanes;
  return is_used ? all * static_cast<double>(iterations) : 0;
}

double FmaFlops(int64_t iterations) {
  F32 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = Set1(static_cast<float>(i));
  const F32 a = Set1(0.999f);
  const F32 b = Set1(0.5f);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) chains[chain] = Fma(chains[chain], a, b);
  }
  F32 sum = Zero();
  for (int i = 0; i < kChains; ++i) sum = Add(sum, chains[i]);
  return Operations(ReduceAdd(sum) > 0, iterations, 2);
}

// The factors change every round; otherwise the compiler may hoist products out of the loop.

#if defined(DS_HAS_BF16_DOT)
double BFloat16DotFlops(int64_t iterations) {
  F32 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = Set1(static_cast<float>(i));
  const Bf16Pairs b = Set1Pair(0x3f803f80u);
  for (int64_t i = 0; i < iterations; ++i) {
    const Bf16Pairs a = Set1Pair(static_cast<uint32_t>(i & 1) * 0x3f803f80u);
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) chains[chain] = DotPairs(chains[chain], a, b);
  }
  F32 sum = Zero();
  for (int i = 0; i < kChains; ++i) sum = Add(sum, chains[i]);
  return Operations(ReduceAdd(sum) > 0, iterations, 4);
}
#endif

double Int8DotOperations(int64_t iterations) {
  I32 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = Set1Int(i);
  const Quads b = Set1Quad(1);
#if defined(DS_HAS_INT8_DOT)
  for (int64_t i = 0; i < iterations; ++i) {
    const Quads a = Set1Quad(static_cast<int32_t>(i & 1));
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) chains[chain] = DotQuads(chains[chain], a, b);
  }
#else
  // Separate inputs per chain: a dot product is several operations here, and chains must share
  // none.
  alignas(64) int8_t a[kChains][4 * kLanes] = {};
  for (int64_t i = 0; i < iterations; ++i) {
    asm volatile("" : : "r"(a) : "memory");
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain)
      chains[chain] = DotQuads(chains[chain], LoadQuads(a[chain]), b);
  }
#endif
  I32 sum = Set1Int(0);
  for (int i = 0; i < kChains; ++i) sum = Add(sum, chains[i]);
  return Operations(ReduceAdd(sum) > 0, iterations, 8);
}

double Flops(Arithmetic arithmetic, int64_t iterations) {
  if (arithmetic == Arithmetic::kInt8Dot) return Int8DotOperations(iterations);
#if defined(DS_HAS_BF16_DOT)
  if (arithmetic == Arithmetic::kBFloat16Dot) return BFloat16DotFlops(iterations);
#endif
  return FmaFlops(iterations);
}

// Reads `count` floats (a multiple of 8 * kLanes) in four streams, the fastest way tried, and
// returns a value that depends on all of them.
float ReadAll(const float* p, int64_t count) {
  constexpr int kStreams = 4;
  const int64_t stream = count / kStreams;
  F32 sums[2 * kStreams];
  for (F32& sum : sums) sum = Zero();
  for (int64_t i = 0; i < stream; i += 2 * kLanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      sums[2 * s] = Add(sums[2 * s], Load(p + s * stream + i));
      sums[2 * s + 1] = Add(sums[2 * s + 1], Load(p + s * stream + i + kLanes));
    }
  }
  F32 sum = Zero();
  for (const F32& part : sums) sum = Add(sum, part);
  return ReduceAdd(sum);
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const ProbeKernels& ProbeKernels::DS_ISA() {
  static constexpr ProbeKernels kKernels = {.flops = DS_ISA::Flops, .read_all = DS_ISA::ReadAll};
  return kKernels;
}

}  // namespace diffserve
