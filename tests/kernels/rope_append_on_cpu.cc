// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/rope_append_backends.h"

namespace diffserve::testing {
namespace {

RopeAppendArgs<float> ArgsOf(RopeCase& rope) {
  rope.q.assign(static_cast<size_t>(rope.memory.num_tokens() * rope.spec.q_width()), -77.0f);
  return {.spec = rope.spec,
          .batch = rope.memory.sequences(),
          .kv = rope.memory.kv(),
          .rope = rope.rope.angles(),
          .style = rope.style,
          .has_kv = rope.has_kv,
          .qkv = rope.qkv.data(),
          .q = rope.q.data()};
}

}  // namespace

std::vector<RopeAppendBackend> RopeAppendBackends() {
  std::vector<RopeAppendBackend> backends;
  const auto add = [&](std::string_view name, DType pages, auto run) {
    backends.push_back({.name = std::string(name) + "_" + std::string(NameOf(pages)),
                        .pages = pages,
                        .activations = DType::kFloat32,
                        .arrangement = KvArrangement::kSlotLanes,
                        .unit = 2,
                        .page_sizes = {16, 32},
                        .clears_fresh_pages = false,
                        .run = run});
  };
  for (DType pages : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    add("reference", pages, [](RopeCase& rope) { RopeAppendRef(ArgsOf(rope)); });
    for (CpuIsa isa : KernelLevels()) {
      add(NameOf(isa), pages, [isa](RopeCase& rope) {
        ThreadPool pool({.num_threads = 2, .pin = false});
        cpu::RopeAppend(ArgsOf(rope), isa, pool);
      });
    }
  }
  return backends;
}

}  // namespace diffserve::testing
