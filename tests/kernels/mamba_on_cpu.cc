// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/mamba_backends.h"

namespace diffserve {
namespace testing {
namespace {

std::vector<float> Gate(GatedMemoryArgs<float> args, bool in_place, CpuIsa isa) {
  ThreadPool pool({.num_threads = 3, .pin = false});
  std::vector<float> out(static_cast<size_t>(args.num_tokens) * static_cast<size_t>(args.width));
  if (in_place) {
    std::copy_n(args.memory, out.size(), out.begin());
    args.memory = out.data();
  }
  args.out = out.data();
  cpu::GatedMemory(args, isa, pool);
  return out;
}

}  // namespace

std::vector<MambaBackend> MambaBackends() {
  std::vector<MambaBackend> backends;
  for (CpuIsa isa : KernelLevels()) {
    MambaBackend backend;
    backend.name = NameOf(isa);
    backend.activations = DType::kFloat32;
    backend.conv = [=](ConvCase& conv) {
      ThreadPool pool({.num_threads = 3, .pin = false});
      cpu::CausalConv(conv.Args(), isa, pool);
    };
    backend.scan = [=](ScanCase& scan) {
      ThreadPool pool({.num_threads = 3, .pin = false});
      cpu::SelectiveScan(scan.Args(), isa, pool);
    };
    backend.gate = [=](const auto& args, bool in_place) { return Gate(args, in_place, isa); };
    backends.push_back(backend);
  }
  return backends;
}

TEST(MambaOnCpuTest, ShapesThatTheContractsExcludeEndTheProcess) {
  const CpuIsa isa = KernelLevels().front();
  ThreadPool pool({.num_threads = 1, .pin = false});
  const CausalConvArgs<float> conv = {
      .batch = {}, .x_stride = 8, .state = {nullptr, 24}, .channels = 8, .width = 4};
  const SelectiveScanArgs<float> scan = {
      .batch = {}, .bc_stride = 16, .state = {nullptr, 128}, .channels = 8, .states = 16};
  cpu::CausalConv(conv, isa, pool);
  cpu::SelectiveScan(scan, isa, pool);
  const auto conv_with = [&](const auto& change) {
    CausalConvArgs<float> args = conv;
    change(args);
    cpu::CausalConv(args, isa, pool);
  };
  const auto scan_with = [&](const auto& change) {
    SelectiveScanArgs<float> args = scan;
    change(args);
    cpu::SelectiveScan(args, isa, pool);
  };
  EXPECT_DEATH(conv_with([](auto& args) { args.width = 1; }), "2 to 8 wide");
  EXPECT_DEATH(conv_with([](auto& args) { args.width = 9; }), "2 to 8 wide");
  EXPECT_DEATH(conv_with([](auto& args) { args.x_stride = 7; }), "rows of x overlap");
  EXPECT_DEATH(conv_with([](auto& args) { args.state.stride = 23; }), "slots .* overlap");
  EXPECT_DEATH(scan_with([](auto& args) { args.states = 0; }), "1 to 128 states");
  EXPECT_DEATH(scan_with([](auto& args) { args.states = 129; }), "1 to 128 states");
  EXPECT_DEATH(scan_with([](auto& args) { args.bc_stride = 15; }), "rows of b and c overlap");
  EXPECT_DEATH(scan_with([](auto& args) { args.state.stride = 127; }), "slots .* overlap");
  const float z = 0;
  EXPECT_DEATH(scan_with([&](auto& args) { args.z = &z; }), "rows of z overlap");
  EXPECT_DEATH(cpu::GatedMemory({.gate_stride = 7, .width = 8}, isa, pool),
               "rows of the gate overlap");
}

}  // namespace testing
}  // namespace diffserve
