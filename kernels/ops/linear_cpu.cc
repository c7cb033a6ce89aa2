#include "kernels/base/kernel_table.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_kernel.h"
#include "kernels/ops/weight_packer.h"

namespace diffserve::cpu {

void Linear(const PackedLinear& weight, const LinearArgs<float>& args, ThreadPool& pool) {
  if (args.num_tokens == 0) return;
  constexpr int64_t kMultiplyAddsWorthWaking = 32768;
  const KernelTable& kernels = KernelsFor(weight.isa());
  const int num_panels = (weight.out_features() + kernels.panel_columns - 1) /
                         kernels.panel_columns;
  const int64_t multiply_adds = static_cast<int64_t>(weight.out_features()) * weight.in_features() *
                                args.num_tokens;
  RunShares(pool, num_panels, multiply_adds >= kMultiplyAddsWorthWaking, [&](int begin, int end) {
    kernels.linear({.panels = weight.panels(),
                    .format = weight.format(),
                    .out_features = weight.out_features(),
                    .in_features = weight.in_features(),
                    .bias = weight.bias(),
                    .x = args.x,
                    .rows = args.num_tokens,
                    .y = args.y,
                    .accumulate = args.accumulate,
                    .panel_begin = begin,
                    .panel_end = end});
  });
}

}  // namespace diffserve::cpu
