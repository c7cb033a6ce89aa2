#include "kernels/base/thread_pool.h"
#include "tests/testing/op_backends.h"

namespace diffserve::testing {

std::vector<SampleBackend> SampleBackends() {
  const auto run = [](SampleArgs args) {
    ThreadPool pool({.num_threads = 3, .pin = false});
    const size_t num_rows = static_cast<size_t>(args.num_rows);
    std::vector<SampledToken> sampled(args.sampled, args.sampled + num_rows);
    std::vector<float> logits(args.logits,
                              args.logits + num_rows * static_cast<size_t>(args.vocab_size));
    args.logits = logits.data();
    args.sampled = sampled.data();
    cpu::Sample(args, pool);
    return sampled;
  };
  return {{.name = "cpu", .run = run}};
}

}  // namespace diffserve::testing
