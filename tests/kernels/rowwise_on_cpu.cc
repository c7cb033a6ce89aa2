// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/op_backends.h"

namespace diffserve::testing {
namespace {

template <typename Args>
std::vector<float> Run(Args args, void (*op)(const Args&, CpuIsa, ThreadPool&), CpuIsa isa) {
  ThreadPool pool({.num_threads = 3, .pin = false});
  std::vector<float> out(static_cast<size_t>(args.num_tokens) * static_cast<size_t>(args.width));
  args.out = out.data();
  op(args, isa, pool);
  return out;
}

}  // namespace

std::vector<RowwiseBackend> RowwiseBackends() {
  std::vector<RowwiseBackend> backends;
  for (CpuIsa isa : KernelLevels()) {
    RowwiseBackend backend;
    backend.name = NameOf(isa);
    backend.activations = DType::kFloat32;
    backend.rms_norm = [=](const auto& args, int) { return Run(args, cpu::RmsNorm, isa); };
    backend.layer_norm = [=](const auto& args, int) { return Run(args, cpu::LayerNorm, isa); };
    backend.silu_mul = [=](const auto& args) { return Run(args, cpu::SiluMul, isa); };
    backend.poly_norm_mul = [=](const auto& args) { return Run(args, cpu::PolyNormMul, isa); };
    backend.sigmoid = [=](std::vector<float> x) {
      ThreadPool pool({.num_threads = 3, .pin = false});
      cpu::Sigmoid({x.data(), static_cast<int64_t>(x.size())}, isa, pool);
      return x;
    };
    backends.push_back(backend);
  }
  return backends;
}

}  // namespace diffserve::testing
