// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/weight_packer_cuda.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/op_backends.h"

namespace diffserve::testing {
namespace {

std::vector<float> Lookup(const TensorView& table, EmbeddingLookupArgs args,
                          const std::vector<int32_t>& drawn) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  ThreadPool pool({.num_threads = 1, .pin = false});
  cuda::WeightPacker packer(stream, WeightFormat::kBFloat16, kBaseCpuIsa, pool);
  const cuda::EmbeddingTable packed = packer.Table(table);
  EXPECT_TRUE(IsOk(packer.status()));
  const std::vector<int32_t> ids(args.tokens, args.tokens + args.num_tokens);
  const DeviceArray<int32_t> tokens(ids, stream), device_drawn(drawn, stream);
  const DeviceArray<float> out(std::vector<float>(ids.size() * static_cast<size_t>(packed.width())),
                               stream);
  args.tokens = tokens.data();
  args.drawn = device_drawn.data();
  args.out = out.data();
  EXPECT_TRUE(IsOk(cuda::EmbeddingLookup(packed, args, stream)));
  return out.Read(stream);
}

}  // namespace

std::vector<EmbeddingBackend> EmbeddingBackends() {
  if (!KernelsCanRun()) return {};
  return {{"cuda", WeightFormat::kBFloat16, Lookup}};
}

}  // namespace diffserve::testing
