// SPDX-License-Identifier: Apache-2.0
// Operations on each token's activations, a row of x, independently. Activations are row-major
// without gaps: float32 on the CPU, bfloat16 (as bits, rounded to nearest even) on a device. There
// the residual stream and the lambdas are float32 too.
//
// *Invariants*: a token's result is one fixed chain of float32 operations. It depends only on the
// width and, on a device, on the alignment of the pointers, not on the other tokens or the number
// of threads. A NaN stays with its token. Without tokens nothing is read or written.
//
// On a device nothing is allocated and nothing waits: each function queues one kernel and returns
// the launch's own error. A width that is a multiple of 8 with 16-byte aligned pointers takes
// 16-byte accesses. Everything else is correct but slower.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace diffserve {

enum class CpuIsa;
class Status;
class ThreadPool;

// out[t] = x[i] / sqrt(mean(x[i]^2) + eps) * weight with i = indices[t], or t without indices.
template <typename Out>
struct RmsNormArgs {
  const float* x = nullptr;       // [num_tokens, width]; with indices, as many rows as they name
  const float* weight = nullptr;  // [width]
  Out* out = nullptr;             // [num_tokens, width]
  int num_tokens = 0;
  int width = 0;
  float eps = 0;
  const int32_t* indices = nullptr;  // [num_tokens] into x; nullptr: all in order
};

// out[t] = (x[i] - mean(x[i])) / sqrt(variance(x[i]) + eps) * weight + bias with i = indices[t], or
// t without indices. The variance is mean((x[i] - mean(x[i]))^2).
template <typename Out>
struct LayerNormArgs {
  const float* x = nullptr;       // [num_tokens, width]; with indices, as many rows as they name
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]
  Out* out = nullptr;             // [num_tokens, width]
  int num_tokens = 0;
  int width = 0;
  float eps = 0;
  const int32_t* indices = nullptr;  // [num_tokens] into x; nullptr: all in order
};

// out[t][i] = silu(gate) * up with gate = x[t][i], up = x[t][width + i]; silu(z) = z / (1 +
// exp(-z)).
template <typename T>
struct SiluMulArgs {
  const T* x = nullptr;  // [num_tokens, 2 * width]
  T* out = nullptr;      // [num_tokens, width]
  int num_tokens = 0;
  int width = 0;
};

// out[t][i] = PN(gate)[i] * up with gate = x[t][0, width), up = x[t][width + i]; PolyNorm (arXiv
// 2411.03884, eq. 6, of order 3):
//   PN(z) = weight[0] n(z^3) + weight[1] n(z^2) + weight[2] n(z) + bias,  n(u) = u / sqrt(mean(u^2)
//   + eps), means over the gate.
template <typename T>
struct PolyNormMulArgs {
  const T* x = nullptr;  // [num_tokens, 2 * width]
  T* out = nullptr;      // [num_tokens, width]
  int num_tokens = 0;
  int width = 0;
  float weight[3] = {};  // cubic, square, linear
  float bias = 0;
  float eps = 1e-6f;
};

// x = 1 / (1 + exp(-x)), in place and elementwise: the lambdas of tokens.
struct SigmoidArgs {
  float* x = nullptr;  // [count]
  int64_t count = 0;
};

void RmsNormRef(const RmsNormArgs<float>& args);
void LayerNormRef(const LayerNormArgs<float>& args);
void SiluMulRef(const SiluMulArgs<float>& args);
void PolyNormMulRef(const PolyNormMulArgs<float>& args);
void SigmoidRef(const SigmoidArgs& args);

namespace cpu {
void RmsNorm(const RmsNormArgs<float>& args, CpuIsa isa, ThreadPool& pool);
void LayerNorm(const LayerNormArgs<float>& args, CpuIsa isa, ThreadPool& pool);
void SiluMul(const SiluMulArgs<float>& args, CpuIsa isa, ThreadPool& pool);
void PolyNormMul(const PolyNormMulArgs<float>& args, CpuIsa isa, ThreadPool& pool);
void Sigmoid(const SigmoidArgs& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
Status RmsNorm(const RmsNormArgs<BFloat16>& args, const Stream& stream);
Status LayerNorm(const LayerNormArgs<BFloat16>& args, const Stream& stream);
Status SiluMul(const SiluMulArgs<BFloat16>& args, const Stream& stream);
Status PolyNormMul(const PolyNormMulArgs<BFloat16>& args, const Stream& stream);
Status Sigmoid(const SigmoidArgs& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
