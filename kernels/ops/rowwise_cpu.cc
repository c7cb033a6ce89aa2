// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernels_for.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/rowwise_kernel.h"

namespace diffserve::cpu {
namespace {

template <typename Args>
void RunTokens(void (*kernel)(const Args&, int begin, int end), const Args& args,
               ThreadPool& pool) {
  const bool worth_waking = int64_t{args.num_tokens} * args.width >= kElementsWorthWaking;
  RunShares(pool, args.num_tokens, worth_waking,
            [&](int begin, int end) { kernel(args, begin, end); });
}

}  // namespace

void RmsNorm(const RmsNormArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  RunTokens(KernelsFor<RowwiseKernels>(isa).rms_norm, args, pool);
}

void LayerNorm(const LayerNormArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  RunTokens(KernelsFor<RowwiseKernels>(isa).layer_norm, args, pool);
}

void SiluMul(const SiluMulArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  RunTokens(KernelsFor<RowwiseKernels>(isa).silu_mul, args, pool);
}

void PolyNormMul(const PolyNormMulArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  RunTokens(KernelsFor<RowwiseKernels>(isa).poly_norm_mul, args, pool);
}

void Sigmoid(const SigmoidArgs& args, CpuIsa isa, ThreadPool& pool) {
  // A step has few lambdas: a share of them would not be worth waking a worker for.
  const auto& kernels = KernelsFor<RowwiseKernels>(isa);
  RunShares(pool, static_cast<int>(args.count), args.count >= kElementsWorthWaking,
            [&](int begin, int end) { kernels.sigmoid(args.x + begin, end - begin); });
}

}  // namespace diffserve::cpu
