// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/attention_on_device.h"
#include "tests/testing/kernels/rope_append_backends.h"

namespace diffserve::testing {
namespace {

void Append(RopeCase& rope) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  const DevicePages pages(rope.memory, stream);
  RopeAngles angles = rope.rope.angles();
  const size_t count = static_cast<size_t>(angles.num_positions * angles.half_dim);
  const DeviceArray<float> cos(std::vector<float>(angles.cos, angles.cos + count), stream);
  const DeviceArray<float> sin(std::vector<float>(angles.sin, angles.sin + count), stream);
  angles.cos = cos.data();
  angles.sin = sin.data();
  const DeviceArray<BFloat16> qkv(ToBFloat16(rope.qkv), stream);
  const DeviceArray<BFloat16> q(
      std::vector<BFloat16>(static_cast<size_t>(rope.memory.num_tokens() * rope.spec.q_width()),
                            0x4e4e),
      stream);
  EXPECT_TRUE(IsOk(cuda::RopeAppend({.spec = rope.spec,
                                     .batch = pages.Batch(),
                                     .kv = pages.kv(),
                                     .rope = angles,
                                     .style = rope.style,
                                     .has_kv = rope.has_kv,
                                     .qkv = qkv.data(),
                                     .q = q.data()},
                                    stream)));
  rope.memory.bytes() = pages.Read(stream);
  rope.q = ToFloats(q.Read(stream));
}

}  // namespace

std::vector<RopeAppendBackend> RopeAppendBackends() {
  if (!KernelsCanRun()) return {};
  return {{.name = "cuda_bfloat16",
           .pages = DType::kBFloat16,
           .activations = DType::kBFloat16,
           .arrangement = KvArrangement::kImage,
           .unit = 16,
           .page_sizes = {cuda::kPageSize},
           .clears_fresh_pages = true,
           .run = Append}};
}

}  // namespace diffserve::testing
