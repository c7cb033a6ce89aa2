// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernels_for.h"
#include "kernels/mamba/channel_shares.h"
#include "kernels/mamba/mamba_kernel.h"
#include "kernels/process/check.h"

namespace diffserve::cpu {

void CausalConv(const CausalConvArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  DS_CHECK(args.width >= kConvWidthMin && args.width <= kConvWidthMax,
           "a convolution is 2 to 8 wide");
  DS_CHECK(args.x_stride >= args.channels, "rows of x overlap");
  DS_CHECK(args.state.stride >= args.StateFloats(), "slots of the convolution's rows overlap");
  const auto& kernels = KernelsFor<CausalConvKernels>(isa);
  const int64_t elements = int64_t{args.channels} * args.batch.num_tokens;
  RunChannelShares(pool, args.channels, elements,
                   [&](int begin, int end) { kernels.run(args, begin, end); });
}

}  // namespace diffserve::cpu
