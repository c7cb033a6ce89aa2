// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/attention_on_device.h"
#include "tests/testing/kernels/attention_backends.h"

namespace diffserve::testing {
namespace {

// That the kernels of every device have.
const std::vector<int> kHeadDims = {16, 32, 48, 64, 80, 96, 112, 128, 256};

using Run = std::vector<float> (*)(const AttentionBatch&, bool bulk_copies);

AttentionBackend BackendOf(const std::string& name, DType pages, std::vector<int> head_dims,
                           Run run, bool bulk_copies) {
  return {.name = name,
          .pages = pages,
          .activations = DType::kBFloat16,
          .arrangement = KvArrangement::kImage,
          .page_sizes = {cuda::kImagePageSize},
          .head_dims = std::move(head_dims),
          .takes_every_v_dim = false,
          .run = [run, bulk_copies](AttentionBatch& batch) { return run(batch, bulk_copies); }};
}

}  // namespace

// Decode and prefill, each with cp.async as on every device and with Hopper's bulk copies. Prefill
// has its own kernels for those.
std::vector<AttentionBackend> DiffAttentionBackends() {
  if (!KernelsCanRun()) return {};
  return {BackendOf("decode", DType::kBFloat16, kHeadDims, Decode, false),
          BackendOf("decode_sm90", DType::kBFloat16, kHeadDims, Decode, true),
          BackendOf("prefill", DType::kBFloat16, kHeadDims, Prefill, false),
          BackendOf("prefill_sm90", DType::kBFloat16, {64, 128}, Prefill, true)};
}

std::vector<AttentionBackend> CodePageBackends() {
  if (!KernelsCanRun()) return {};
  std::vector<AttentionBackend> backends;
  for (DType pages : {DType::kInt8, DType::kInt8KInt4V, DType::kInt4, DType::kFp8E4M3}) {
    const std::string of = "_" + std::string(NameOf(pages));
    backends.push_back(BackendOf("decode" + of, pages, kHeadDims, Decode, false));
    backends.push_back(BackendOf("decode_sm90" + of, pages, kHeadDims, Decode, true));
    backends.push_back(BackendOf("prefill" + of, pages, kHeadDims, Prefill, false));
    backends.push_back(BackendOf("prefill_sm90" + of, pages, {64, 128}, Prefill, true));
  }
  return backends;
}

}  // namespace diffserve::testing
