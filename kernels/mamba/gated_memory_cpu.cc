// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernels_for.h"
#include "kernels/base/thread_pool.h"
#include "kernels/mamba/mamba_kernel.h"
#include "kernels/process/check.h"

namespace diffserve::cpu {

void GatedMemory(const GatedMemoryArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  DS_CHECK(args.gate_stride >= args.width, "rows of the gate overlap");
  const auto& kernels = KernelsFor<GatedMemoryKernels>(isa);
  const bool worth_waking = int64_t{args.num_tokens} * args.width >= kElementsWorthWaking;
  RunShares(pool, args.num_tokens, worth_waking,
            [&](int begin, int end) { kernels.run(args, begin, end); });
}

}  // namespace diffserve::cpu
