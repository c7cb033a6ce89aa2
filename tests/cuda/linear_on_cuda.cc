// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "kernels/ops/few_rows_cuda.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/op_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve::testing {
namespace {

enum class Products { kBatchInvariant, kDefault, kFewRows };

struct OnDevice {
  explicit OnDevice(Products products_)
      : products(products_),
        library(cuda::MatrixLibrary::Open({.batch_invariant = products == Products::kBatchInvariant,
                                           .scratch_bytes = 24 * 4 * 20})
                    .value()) {}
  Products products;
  cuda::Stream stream = cuda::Stream::Create().value();
  std::unique_ptr<cuda::MatrixLibrary> library;
  cuda::FewRows few_rows =
      cuda::FewRows::Create(cuda::OpenDevice(0).value(), size_t{4} << 20, stream).value();
  cuda::PackedLinear weight;
};

template <typename Y>
std::vector<Y> Run(const OnDevice& device, const LinearTestInput& input, const std::vector<Y>& y) {
  const DeviceArray<BFloat16> x(ToBFloat16(input.x), device.stream);
  const DeviceArray<Y> device_y(y, device.stream);
  const LinearArgs<BFloat16, Y> args = {.x = x.data(),
                                        .num_tokens = input.num_tokens,
                                        .y = device_y.data(),
                                        .accumulate = input.accumulate,
                                        .x_stride = input.x_stride};
  EXPECT_TRUE(IsOk(device.products == Products::kFewRows
                       ? cuda::LinearFewRows(device.weight, args, {device.few_rows}, device.stream)
                       : cuda::Linear(device.weight, args, *device.library, device.stream)));
  return device_y.Read(device.stream);
}

PackedRun Pack(const std::vector<LinearPart>& parts, LinearOutput output, Products products) {
  const auto device = std::make_shared<OnDevice>(products);
  ThreadPool pool({.num_threads = 1, .pin = false});
  cuda::WeightPacker packer(device->stream, WeightFormat::kBFloat16, kBaseCpuIsa, pool);
  device->weight = packer.Linear(parts, output);
  EXPECT_TRUE(IsOk(packer.status()));
  EXPECT_TRUE(IsOk(device->stream.Synchronize()));
  return [=](const LinearTestInput& input) {
    std::vector<float> y = input.y;
    y.resize(static_cast<size_t>(input.num_tokens) *
             static_cast<size_t>(device->weight.out_features()));
    if (output == LinearOutput::kFloat32) return Run(*device, input, y);
    return ToFloat(Run(*device, input, ToBFloat16(y)));
  };
}

}  // namespace

std::vector<LinearBackend> LinearBackends() {
  if (!KernelsCanRun()) return {};
  std::vector<LinearBackend> backends;
  for (const auto& [products, name] : {std::pair{Products::kBatchInvariant, "batch-invariant"},
                                       {Products::kDefault, "default"},
                                       {Products::kFewRows, "few rows"}}) {
    backends.push_back(
        {.name = std::string("cuda, ") + name,
         .format = WeightFormat::kBFloat16,
         .activations = DType::kBFloat16,
         .inputs = DType::kBFloat16,
         .unit = 8,
         .is_batch_invariant = products != Products::kDefault,
         .pack = [=, kind = products](const std::vector<LinearPart>& parts, LinearOutput output) {
           return Pack(parts, output, kind);
         }});
  }
  return backends;
}

}  // namespace diffserve::testing
