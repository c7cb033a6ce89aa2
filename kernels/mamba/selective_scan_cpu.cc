// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernels_for.h"
#include "kernels/mamba/channel_shares.h"
#include "kernels/mamba/mamba_kernel.h"
#include "kernels/process/check.h"

namespace diffserve::cpu {

void SelectiveScan(const SelectiveScanArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  DS_CHECK(args.states >= 1 && args.states <= kScanStatesMax, "a scan has 1 to 128 states");
  DS_CHECK(args.bc_stride >= args.states, "rows of b and c overlap");
  DS_CHECK(args.z == nullptr || args.z_stride >= args.channels, "rows of z overlap");
  DS_CHECK(args.state.stride >= args.StateFloats(), "slots of the scan's states overlap");
  const auto& kernels = KernelsFor<SelectiveScanKernels>(isa);
  const int64_t updates = args.StateFloats() * args.batch.num_tokens;
  RunChannelShares(pool, args.channels, updates,
                   [&](int begin, int end) { kernels.run(args, begin, end); });
}

}  // namespace diffserve::cpu
