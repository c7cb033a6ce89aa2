// Operations that treat each row of an activation on its own. All activations are float32,
// row-major.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/tensor.h"
#include "kernels/base/thread_pool.h"

namespace diffserve {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight.
struct RmsNormArgs {
  const float* x = nullptr;       // [rows, width]
  const float* weight = nullptr;  // [width]
  float* out = nullptr;           // [rows, width]; may be x
  int rows = 0;
  int width = 0;
  float eps = 0;
};

// out[r][i] = silu(gate) * up with gate = x[r][i], up = x[r][width + i]; silu(z) = z / (1 +
// exp(-z)).
struct SiluMulArgs {
  const float* x = nullptr;  // [rows, 2 * width]
  float* out = nullptr;      // [rows, width]
  int rows = 0;
  int width = 0;
};

// out[r][i] = PN(gate)[i] * up with gate = x[r][0, width), up = x[r][width + i]; PolyNorm (arXiv
// 2411.03884, eq. 6, of order 3):
//   PN(z) = weight[0] n(z^3) + weight[1] n(z^2) + weight[2] n(z) + bias,  n(u) = u / sqrt(mean(u^2)
//   + eps), means over the row.
struct PolyNormMulArgs {
  const float* x = nullptr;  // [rows, 2 * width]
  float* out = nullptr;      // [rows, width]
  int rows = 0;
  int width = 0;
  float weight[3] = {};  // cubic, square, linear
  float bias = 0;
  float eps = 1e-6f;
};

void RmsNormRef(const RmsNormArgs& args);
void SiluMulRef(const SiluMulArgs& args);
void PolyNormMulRef(const PolyNormMulArgs& args);
void SigmoidRef(std::span<float> x);

namespace cpu {
void RmsNorm(const RmsNormArgs& args, CpuIsa isa, ThreadPool& pool);
void SiluMul(const SiluMulArgs& args, CpuIsa isa, ThreadPool& pool);
void PolyNormMul(const PolyNormMulArgs& args, CpuIsa isa, ThreadPool& pool);
// x = 1 / (1 + exp(-x)), in place, each element on its own.
void Sigmoid(std::span<float> x, CpuIsa isa);
// out[r] = table[tokens[r]], converted to float32. table: [vocab, width]. REQUIRES: 0 <= tokens[r]
// < vocab.
void EmbeddingLookup(const TensorView& table, std::span<const int32_t> tokens, float* out,
                     ThreadPool& pool);
}  // namespace cpu

}  // namespace diffserve
