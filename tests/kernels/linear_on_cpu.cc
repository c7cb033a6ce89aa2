// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/op_backends.h"

namespace diffserve::testing {
namespace {

PackedRun Pack(const std::vector<LinearPart>& parts, LinearOutput output, WeightFormat format,
               CpuIsa isa) {
  const auto pool = std::make_shared<ThreadPool>(
      ThreadPool::Options{.num_threads = 3, .pin = false});
  cpu::WeightPacker packer(WeightFormat::kFloat32, format, isa, *pool);
  const auto weight = std::make_shared<cpu::PackedLinear>(packer.Linear(parts, output));
  EXPECT_TRUE(packer.status().ok()) << packer.status().message();
  return [=](const LinearTestInput& input) {
    std::vector<float> y = input.y;
    y.resize(static_cast<size_t>(input.num_tokens) * static_cast<size_t>(weight->out_features()));
    cpu::Linear(*weight,
                {.x = input.x.data(),
                 .num_tokens = input.num_tokens,
                 .y = y.data(),
                 .accumulate = input.accumulate,
                 .x_stride = input.x_stride},
                *pool);
    return y;
  };
}

}  // namespace

std::vector<LinearBackend> LinearBackends() {
  std::vector<LinearBackend> backends;
  for (CpuIsa isa : KernelLevels()) {
    for (WeightFormat format : kFloatFormats) {
      const bool rounds = RoundsToBFloat16(isa) && format == WeightFormat::kBFloat16;
      const auto pack = [=](const auto& parts, LinearOutput output) {
        return Pack(parts, output, format, isa);
      };
      backends.push_back({.name = std::string(NameOf(isa)) + " " + std::string(NameOf(format)),
                          .format = format,
                          .activations = DType::kFloat32,
                          .inputs = rounds ? DType::kBFloat16 : DType::kFloat32,
                          .pack = pack});
    }
  }
  return backends;
}

}  // namespace diffserve::testing
