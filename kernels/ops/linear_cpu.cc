// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "kernels/base/kernels_for.h"
#include "kernels/base/machine_probe_kernel.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_kernel.h"
#include "kernels/ops/weight_packer.h"

namespace diffserve::cpu {
namespace {

// x as the kernel reads it: the caller's own memory, or a converted copy.
class PackedInput {
 public:
  PackedInput(const PackedLinear& weight, const LinearArgs<float>& args, ThreadPool& pool) {
    const auto& kernels = KernelsFor<LinearDotKernels>(weight.isa());
    x_.kind = kernels.kind(weight.format());
    const int64_t rows = args.num_tokens, in_features = weight.in_features();
    if (x_.kind == LinearInput::kFloat32) {
      x_.values = const_cast<float*>(args.x);
      x_.stride = args.XStride(in_features);
      return;
    }
    const int64_t groups = NumQuantGroups(in_features);
    // Rows of a multiple of 4 KiB would compete for the same cache sets.
    x_.stride = (groups + 1) * kQuantGroup;
    const bool is_int8 = x_.kind == LinearInput::kInt8;
    const int64_t value_bytes = rows * x_.stride * (is_int8 ? 1 : 2);
    const int64_t scale_bytes = is_int8 ? rows * groups * int64_t{sizeof(float)} : 0;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(
        static_cast<size_t>(value_bytes + 2 * scale_bytes));
    x_.values = memory_.get();
    x_.scales = reinterpret_cast<float*>(memory_.get() + value_bytes);
    x_.offsets = reinterpret_cast<int32_t*>(memory_.get() + value_bytes + scale_bytes);
    RunShares(pool, args.num_tokens, rows * in_features >= kElementsWorthWaking,
              [&](int begin, int end) {
                kernels.pack({.format = weight.format(),
                              .x = args.x,
                              .x_stride = args.XStride(in_features),
                              .in_features = weight.in_features(),
                              .begin = begin,
                              .end = end,
                              .to = x_});
              });
  }

  const LinearX& x() const { return x_; }

 private:
  LinearX x_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

Arithmetic ArithmeticOf(WeightFormat format, CpuIsa isa) {
  switch (KernelsFor<LinearDotKernels>(isa).kind(format)) {
    case LinearInput::kFloat32:
      break;
    case LinearInput::kBFloat16:
      return Arithmetic::kBFloat16Dot;
    case LinearInput::kInt8:
      return Arithmetic::kInt8Dot;
  }
  return Arithmetic::kFma;
}

void Linear(const PackedLinear& weight, const LinearArgs<float>& args, ThreadPool& pool) {
  if (args.num_tokens == 0) return;
  constexpr int64_t kMultiplyAddsWorthWaking = 32768;
  const auto& kernels = KernelsFor<LinearKernels>(weight.isa());
  const PackedInput input(weight, args, pool);
  const auto run = input.x().kind == LinearInput::kFloat32
                       ? kernels.linear
                       : KernelsFor<LinearDotKernels>(weight.isa()).linear;
  const int num_panels = (weight.out_features() + kernels.panel_columns - 1) /
                         kernels.panel_columns;
  const int64_t multiply_adds = static_cast<int64_t>(weight.out_features()) * weight.in_features() *
                                args.num_tokens;
  RunShares(pool, num_panels, multiply_adds >= kMultiplyAddsWorthWaking, [&](int begin, int end) {
    run({.panels = weight.panels(),
         .panel_bytes = weight.panel_bytes(),
         .format = weight.format(),
         .out_features = weight.out_features(),
         .in_features = weight.in_features(),
         .scale = weight.scale(),
         .bias = weight.bias(),
         .x = input.x(),
         .rows = args.num_tokens,
         .y = args.y,
         .accumulate = args.accumulate,
         .panel_begin = begin,
         .panel_end = end});
  });
}

}  // namespace diffserve::cpu
