// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/attention_backends.h"

namespace diffserve::testing {
namespace {

AttentionBackend BackendOf(CpuIsa isa, DType pages) {
  // On levels with bfloat16 dot products, q and weights are rounded.
  const bool rounds = RoundsToBFloat16(isa) && pages == DType::kBFloat16;
  std::vector<int> head_dims = {8, 16, 24, 32, 48, 64, 80, 96, 128};
  if (!rounds) head_dims.push_back(2);  // rounding errors vary too much over its few outputs
  return {.name = std::string(NameOf(isa)) + "_" + std::string(NameOf(pages)),
          .pages = pages,
          .activations = rounds ? DType::kBFloat16 : DType::kFloat32,
          .arrangement = KvArrangement::kSlotLanes,
          .page_sizes = {16, 32, 48, 64, 128},
          .head_dims = head_dims,
          .takes_every_v_dim = true,
          .run = [isa](AttentionBatch& batch) {
            ThreadPool pool({.num_threads = 2, .pin = false});
            std::vector<float> out;
            cpu::AttentionWorkspace workspace;
            cpu::DiffAttention(batch.Args(out), workspace, isa, pool);
            return out;
          }};
}

std::vector<AttentionBackend> BackendsOf(std::initializer_list<DType> formats) {
  std::vector<AttentionBackend> backends;
  for (DType pages : formats) {
    for (CpuIsa isa : KernelLevels()) backends.push_back(BackendOf(isa, pages));
  }
  return backends;
}

}  // namespace

std::vector<AttentionBackend> DiffAttentionBackends() {
  return BackendsOf({DType::kFloat32, DType::kBFloat16, DType::kFloat16});
}
std::vector<AttentionBackend> CodePageBackends() {
  return BackendsOf({DType::kInt8, DType::kInt8KInt4V, DType::kInt4});
}

}  // namespace diffserve::testing
