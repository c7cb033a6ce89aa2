// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/mamba_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace testing {
namespace {

using Activations = DeviceArray<BFloat16>;
using Floats = DeviceArray<float>;

void Conv(ConvCase& host) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  const DeviceArray<StateSequence> sequences(host.rows.sequences, stream);
  const Activations x(ToBFloat16(host.x), stream), out(ToBFloat16(host.out), stream);
  const Floats taps(host.taps, stream), bias(host.bias, stream), state(host.state, stream);
  CausalConvArgs<BFloat16> args = {.batch = host.rows.Batch(),
                                   .x = x.data(),
                                   .x_stride = host.x_stride,
                                   .taps = taps.data(),
                                   .bias = bias.data(),
                                   .out = out.data(),
                                   .state = {state.data(), host.slot_stride},
                                   .channels = host.channels,
                                   .width = host.width};
  args.batch.sequences = sequences.data();
  EXPECT_TRUE(IsOk(cuda::CausalConv(args, stream)));
  host.out = ToFloat(out.Read(stream));
  host.state = state.Read(stream);
}

void Scan(ScanCase& host) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  const DeviceArray<StateSequence> sequences(host.rows.sequences, stream);
  const Activations x(ToBFloat16(host.x), stream), dt(ToBFloat16(host.dt), stream),
      bc(ToBFloat16(host.bc), stream), z(ToBFloat16(host.z), stream),
      out(ToBFloat16(host.out), stream);
  const Floats dt_bias(host.dt_bias, stream), rates(host.rates, stream), skip(host.skip, stream),
      state(host.state, stream);
  SelectiveScanArgs<BFloat16> args = {.batch = host.rows.Batch(),
                                      .x = x.data(),
                                      .dt = dt.data(),
                                      .dt_bias = dt_bias.data(),
                                      .b = bc.data(),
                                      .c = bc.data() + host.states,
                                      .bc_stride = host.bc_stride,
                                      .rates = rates.data(),
                                      .skip = skip.data(),
                                      .z = z.data(),
                                      .z_stride = host.z_stride,
                                      .out = out.data(),
                                      .state = {state.data(), host.slot_stride},
                                      .channels = host.channels,
                                      .states = host.states};
  args.batch.sequences = sequences.data();
  EXPECT_TRUE(IsOk(cuda::SelectiveScan(args, stream)));
  host.out = ToFloat(out.Read(stream));
  host.state = state.Read(stream);
}

// `shift` elements move every pointer off its alignment.
std::vector<float> Gate(const GatedMemoryArgs<float>& host, bool in_place, size_t shift) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  const auto tokens = static_cast<size_t>(host.num_tokens);
  const size_t size = tokens * static_cast<size_t>(host.width);
  const Activations gate(ToBFloat16({host.gate, tokens * static_cast<size_t>(host.gate_stride)}),
                         stream, shift),
      memory(ToBFloat16({host.memory, size}), stream, shift),
      out(std::vector<BFloat16>(size), stream, shift);
  const Activations& result = in_place ? memory : out;
  EXPECT_TRUE(IsOk(cuda::GatedMemory({.gate = gate.data(),
                                      .gate_stride = host.gate_stride,
                                      .memory = memory.data(),
                                      .out = result.data(),
                                      .num_tokens = host.num_tokens,
                                      .width = host.width},
                                     stream)));
  return ToFloat(result.Read(stream));
}

class MambaCudaTest : public OnDeviceTest {
 public:
  using OnDeviceTest::OnEverySchedule;
};

}  // namespace

std::vector<MambaBackend> MambaBackends() {
  if (!KernelsCanRun()) return {};
  MambaBackend backend;
  backend.name = "cuda";
  backend.activations = DType::kBFloat16;
  backend.conv = Conv;
  backend.scan = Scan;
  backend.gate = [](const auto& args, bool in_place) {
    const std::vector<float> out = Gate(args, in_place, 0);
    EXPECT_TRUE(SameBits(Gate(args, in_place, 1), out)) << "with 2-byte and 16-byte accesses";
    return out;
  };
  backend.on_every_schedule = [](const auto& check) { MambaCudaTest::OnEverySchedule(check); };
  return {backend};
}

TEST_F(MambaCudaTest, ShapesThatTheContractsExcludeAreRefused) {
  const CausalConvArgs<BFloat16> conv = {
      .batch = {}, .x_stride = 8, .state = {nullptr, 24}, .channels = 8, .width = 4};
  const SelectiveScanArgs<BFloat16> scan = {
      .batch = {}, .bc_stride = 16, .state = {nullptr, 128}, .channels = 8, .states = 16};
  EXPECT_TRUE(IsOk(cuda::CausalConv(conv, *stream_)));
  EXPECT_TRUE(IsOk(cuda::SelectiveScan(scan, *stream_)));
  const auto refuses_conv = [&](const auto& change) {
    CausalConvArgs<BFloat16> args = conv;
    change(args);
    return cuda::CausalConv(args, *stream_).code() == StatusCode::kInternal;
  };
  const auto refuses_scan = [&](const auto& change) {
    SelectiveScanArgs<BFloat16> args = scan;
    change(args);
    return cuda::SelectiveScan(args, *stream_).code() == StatusCode::kInternal;
  };
  EXPECT_TRUE(refuses_conv([](auto& args) { args.width = 1; }));
  EXPECT_TRUE(refuses_conv([](auto& args) { args.width = 9; }));
  EXPECT_TRUE(refuses_conv([](auto& args) { args.x_stride = 7; }));
  EXPECT_TRUE(refuses_conv([](auto& args) { args.state.stride = 23; }));
  EXPECT_TRUE(refuses_scan([](auto& args) { args.states = 0; }));
  EXPECT_TRUE(refuses_scan([](auto& args) { args.states = 129; }));
  EXPECT_TRUE(refuses_scan([](auto& args) { args.bc_stride = 15; }));
  EXPECT_TRUE(refuses_scan([](auto& args) { args.state.stride = 127; }));
  const BFloat16 z = 0;
  EXPECT_TRUE(refuses_scan([&](auto& args) { args.z = &z; }));
  EXPECT_EQ(cuda::GatedMemory({.gate_stride = 7, .width = 8}, *stream_).code(),
            StatusCode::kInternal);
}

}  // namespace testing
}  // namespace diffserve
