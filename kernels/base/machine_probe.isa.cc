#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

double FmaFlops(int64_t iterations);
double FmaFlops(int64_t iterations) {
  constexpr int kChains = 12;
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
  const double flops = 2.0 * kChains * kLanes * static_cast<double>(iterations);
  return ReduceAdd(sum) > 0 ? flops : 0;  // the result is used, so the loop cannot be dropped
}

// Reads `count` floats (a multiple of 8 * kLanes) in four streams, which is the fastest of the ways
// tried, and returns a value that depends on all of them.
float ReadAll(const float* p, int64_t count);
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

}  // namespace diffserve::DS_ISA
