#include "tests/testing/attention_backends.h"

namespace diffserve::testing {

std::vector<AttentionBackend> DiffAttentionBackends() {
  std::vector<AttentionBackend> backends;
  for (DType pages : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (CpuIsa isa : KernelLevels()) {
      backends.push_back({.name = std::string(NameOf(isa)) + "_" + std::string(NameOf(pages)),
                          .pages = pages,
                          .activations = DType::kFloat32,
                          .arrangement = KvArrangement::kSlotLanes,
                          .page_sizes = {16, 32, 48, 64, 128},
                          .head_dims = {2, 8, 16, 24, 32, 48, 64, 80, 96, 128},
                          .takes_every_v_dim = true,
                          .run = [isa](AttentionBatch& batch) {
                            ThreadPool pool({.num_threads = 2, .pin = false});
                            std::vector<float> out;
                            cpu::DiffAttention(batch.Args(out), isa, pool);
                            return out;
                          }});
    }
  }
  return backends;
}

}  // namespace diffserve::testing
