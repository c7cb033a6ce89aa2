// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/op_backends.h"

namespace diffserve::testing {
namespace {

// `shift` elements move the logits off their alignment.
std::vector<SampledToken> Run(SampleArgs args, size_t shift) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  const auto num_rows = static_cast<size_t>(args.num_rows);
  const size_t num_logits = num_rows * static_cast<size_t>(args.vocab_size);
  size_t num_adjustments = 0, num_masks = 0;
  for (size_t i = 0; i < num_rows; ++i) {
    num_adjustments += static_cast<size_t>(args.tasks[i].num_adjustments);
    num_masks += args.tasks[i].mask >= 0 ? 1 : 0;
  }
  const DeviceArray<float> logits({args.logits, args.logits + num_logits}, stream, shift);
  const DeviceArray<SampleTask> tasks({args.tasks, args.tasks + num_rows}, stream);
  const DeviceArray<LogitAdjustment> adjustments(
      {args.adjustments, args.adjustments + num_adjustments}, stream);
  const size_t num_words = num_masks * MaskWords(args.vocab_size);
  const DeviceArray<uint32_t> masks({args.masks, args.masks + num_words}, stream);
  const DeviceArray<SampledToken> sampled({args.sampled, args.sampled + num_rows}, stream);
  args.logits = logits.data();
  args.tasks = tasks.data();
  args.adjustments = adjustments.data();
  args.masks = masks.data();
  args.sampled = sampled.data();
  EXPECT_TRUE(IsOk(cuda::Sample(args, stream)));
  return sampled.Read(stream);
}

struct Schedules : OnDeviceTest {
  using OnDeviceTest::OnEverySchedule;
};

}  // namespace

std::vector<SampleBackend> SampleBackends() {
  std::vector<SampleBackend> backends;
  if (!KernelsCanRun()) return backends;
  for (size_t shift : {0u, 3u}) {
    backends.push_back(
        {.name = shift == 0 ? "cuda" : "cuda, unaligned",
         .is_slow = !kHasGpu,
         .run = [=](const SampleArgs& args) { return Run(args, shift); },
         .on_every_schedule = [](const auto& check) { Schedules::OnEverySchedule(check); }});
  }
  return backends;
}

}  // namespace diffserve::testing
