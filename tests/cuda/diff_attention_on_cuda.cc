#include "tests/cuda/attention_on_device.h"
#include "tests/testing/attention_backends.h"

namespace diffserve::testing {

// Decode and prefill, each with cp.async as on every device and with Hopper's bulk copies, which
// prefill has kernels of its own for.
std::vector<AttentionBackend> DiffAttentionBackends() {
  if (!KernelsCanRun()) return {};
  std::vector<AttentionBackend> backends;
  const auto add = [&](const char* name, std::vector<int> head_dims, auto run) {
    backends.push_back({.name = name,
                        .pages = DType::kBFloat16,
                        .activations = DType::kBFloat16,
                        .arrangement = KvArrangement::kImage,
                        .page_sizes = {cuda::kImagePageSize},
                        .head_dims = std::move(head_dims),
                        .takes_every_v_dim = false,
                        .run = run});
  };
  const std::vector<int> all = {48, 64, 96, 128};
  add("decode", all, [](AttentionBatch& batch) { return Decode(batch, false); });
  add("decode_sm90", all, [](AttentionBatch& batch) { return Decode(batch, true); });
  add("prefill", all, [](AttentionBatch& batch) { return Prefill(batch, false); });
  add("prefill_sm90", {64, 128}, [](AttentionBatch& batch) { return Prefill(batch, true); });
  return backends;
}

}  // namespace diffserve::testing
