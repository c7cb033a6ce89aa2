#include "kernels/base/simd.h"
#include "kernels/ops/rowwise_kernel.h"

namespace diffserve::DS_ISA {
namespace {

// Four chains, joined in pairs: an order that depends on the width alone.
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

}  // namespace

void RmsNorm(const RmsNormRows& rows);
void RmsNorm(const RmsNormRows& rows) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    const float* x = rows.x + row * rows.width;
    float* out = rows.out + row * rows.width;
    const float mean = SumOfSquares(x, rows.width) / static_cast<float>(rows.width);
    const F32 factor = Set1(1.0f / __builtin_sqrtf(mean + rows.eps));
    for (int i = 0; i < rows.width; i += kLanes) {
      const int n = rows.width - i < kLanes ? rows.width - i : kLanes;
      StoreFirst(out + i, n, Mul(Mul(LoadFirst(x + i, n), factor), LoadFirst(rows.weight + i, n)));
    }
  }
}

void SiluMul(const SiluMulRows& rows);
void SiluMul(const SiluMulRows& rows) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    const float* gate = rows.x + row * 2 * rows.width;
    const float* up = gate + rows.width;
    float* out = rows.out + row * rows.width;
    for (int i = 0; i < rows.width; i += kLanes) {
      const int n = rows.width - i < kLanes ? rows.width - i : kLanes;
      const F32 z = LoadFirst(gate + i, n);
      const F32 silu = Div(z, Add(Set1(1.0f), Exp(Sub(Zero(), z))));
      StoreFirst(out + i, n, Mul(silu, LoadFirst(up + i, n)));
    }
  }
}

}  // namespace diffserve::DS_ISA
