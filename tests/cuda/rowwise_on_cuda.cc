// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/op_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace testing {
namespace {

// `shift` elements move every pointer off its alignment.
struct OnDevice {
  size_t shift;

  template <typename Args>
  std::vector<BFloat16> Run(Args args, Status (*op)(const Args&, const cuda::Stream&),
                            const cuda::Stream& stream) const {
    const size_t size = static_cast<size_t>(args.num_tokens) * static_cast<size_t>(args.width);
    const DeviceArray<BFloat16> out(std::vector<BFloat16>(size), stream, shift);
    args.out = out.data();
    EXPECT_TRUE(IsOk(op(args, stream)));
    return out.Read(stream);
  }

  template <template <typename> typename Args>
  std::vector<float> Gated(const Args<float>& host, Args<BFloat16> args,
                           Status (*op)(const Args<BFloat16>&, const cuda::Stream&)) const {
    const cuda::Stream stream = cuda::Stream::Create().value();
    const size_t size = 2 * static_cast<size_t>(host.num_tokens) * static_cast<size_t>(host.width);
    const DeviceArray<BFloat16> x(ToBFloat16({host.x, size}), stream, shift);
    args.x = x.data();
    args.num_tokens = host.num_tokens;
    args.width = host.width;
    return ToFloat(Run(args, op, stream));
  }

  template <template <typename> typename Args>
  std::vector<float> Norm(const Args<float>& host, int num_x,
                          Status (*op)(const Args<BFloat16>&, const cuda::Stream&)) const {
    const cuda::Stream stream = cuda::Stream::Create().value();
    const auto width = static_cast<size_t>(host.width);
    const DeviceArray<float> x(
        std::vector<float>(host.x, host.x + static_cast<size_t>(num_x) * width), stream, shift);
    const DeviceArray<float> weight(std::vector<float>(host.weight, host.weight + width), stream,
                                    shift);
    std::vector<int32_t> listed;
    if (host.indices != nullptr) listed.assign(host.indices, host.indices + host.num_tokens);
    const DeviceArray<int32_t> indices(listed, stream);
    Args<BFloat16> args;
    std::vector<float> biases;
    if constexpr (requires { host.bias; }) biases.assign(host.bias, host.bias + width);
    const DeviceArray<float> bias(biases, stream, shift);
    if constexpr (requires { host.bias; }) args.bias = bias.data();
    args.x = x.data();
    args.weight = weight.data();
    args.num_tokens = host.num_tokens;
    args.width = host.width;
    args.eps = host.eps;
    args.indices = indices.data();
    return ToFloat(Run(args, op, stream));
  }

  std::vector<float> PolyNormMul(const PolyNormMulArgs<float>& host) const {
    PolyNormMulArgs<BFloat16> args;
    std::copy_n(host.weight, 3, args.weight);
    args.bias = host.bias;
    args.eps = host.eps;
    return Gated(host, args, cuda::PolyNormMul);
  }

  std::vector<float> Sigmoid(const std::vector<float>& values) const {
    const cuda::Stream stream = cuda::Stream::Create().value();
    const DeviceArray<float> x(values, stream, shift);
    EXPECT_TRUE(IsOk(cuda::Sigmoid({x.data(), static_cast<int64_t>(values.size())}, stream)));
    return x.Read(stream);
  }
};

}  // namespace

std::vector<RowwiseBackend> RowwiseBackends() {
  std::vector<RowwiseBackend> backends;
  if (!KernelsCanRun()) return backends;
  for (size_t shift : {0u, 1u}) {
    const OnDevice device = {shift};
    RowwiseBackend backend;
    backend.name = shift == 0 ? "cuda" : "cuda, unaligned";
    backend.activations = DType::kBFloat16;
    backend.rms_norm = [=](const auto& args, int num_x) {
      return device.Norm(args, num_x, cuda::RmsNorm);
    };
    backend.layer_norm = [=](const auto& args, int num_x) {
      return device.Norm(args, num_x, cuda::LayerNorm);
    };
    backend.silu_mul = [=](const auto& args) { return device.Gated(args, {}, cuda::SiluMul); };
    backend.poly_norm_mul = [=](const auto& args) { return device.PolyNormMul(args); };
    backend.sigmoid = [=](const std::vector<float>& x) { return device.Sigmoid(x); };
    backends.push_back(backend);
  }
  return backends;
}

class RowwiseCudaTest : public OnDeviceTest {};

// x exceeds 2^32 elements, out 2^31; only the last token is not zero.
TEST_F(RowwiseCudaTest, TokensBeyond2To32ElementsAreReached) {
  if (!kHasGpu) GTEST_SKIP() << "needs a GPU: 16 GiB of device memory";
  const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
  ASSERT_TRUE(memory.ok());
  if (memory->free_bytes < size_t{16} << 30)
    GTEST_SKIP() << "needs 16 GiB of free device memory, has " << memory->free_bytes;
  constexpr size_t kTokens = 65537, kWidth = 32768;
  const std::vector<float> last = Rounded(RandomFloats(2 * kWidth, 14, -3, 3), DType::kBFloat16);
  auto x = cuda::DeviceBuffer::Allocate(kTokens * 2 * kWidth * 2),
       out = cuda::DeviceBuffer::Allocate(kTokens * kWidth * 2);
  ASSERT_TRUE(x.ok() && out.ok());
  ASSERT_TRUE(IsOk(cuda::FillBytes(*x, std::byte{0}, *stream_)));
  const std::vector<BFloat16> bits = ToBFloat16(last);
  ASSERT_TRUE(IsOk(cuda::CopyToDevice(std::as_bytes(std::span(bits)), *x,
                                      (kTokens - 1) * 2 * kWidth * 2, *stream_)));
  ASSERT_TRUE(
      IsOk(cuda::SiluMul({x->as<BFloat16>(), out->as<BFloat16>(), kTokens, kWidth}, *stream_)));
  std::vector<BFloat16> result(kWidth);
  ASSERT_TRUE(IsOk(cuda::CopyToHost(*out, (kTokens - 1) * kWidth * 2,
                                    std::as_writable_bytes(std::span(result)), *stream_)));
  ASSERT_TRUE(IsOk(stream_->Synchronize()));
  const SiluMulArgs<float> alone = {.x = last.data(), .num_tokens = 1, .width = kWidth};
  EXPECT_TRUE(SameBits(ToFloat(result), OnDevice{0}.Gated(alone, {}, cuda::SiluMul)));
}

}  // namespace testing
}  // namespace diffserve
