// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/thread_pool.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/op_backends.h"

namespace diffserve::testing {

std::vector<SampleBackend> SampleBackends() {
  const auto run = [](SampleArgs args, CpuIsa isa) {
    ThreadPool pool({.num_threads = 3, .pin = false});
    const size_t num_rows = static_cast<size_t>(args.num_rows);
    std::vector<SampledToken> sampled(args.sampled, args.sampled + num_rows);
    std::vector<float> logits(args.logits,
                              args.logits + num_rows * static_cast<size_t>(args.vocab_size));
    args.logits = logits.data();
    args.sampled = sampled.data();
    cpu::Sample(args, isa, pool);
    return sampled;
  };
  std::vector<SampleBackend> backends;
  for (CpuIsa isa : KernelLevels()) {
    backends.push_back({.name = std::string(NameOf(isa)),
                        .run = [run, isa](SampleArgs args) { return run(args, isa); }});
  }
  return backends;
}

}  // namespace diffserve::testing
