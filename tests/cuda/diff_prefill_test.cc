// SPDX-License-Identifier: Apache-2.0
// Features of only the prefill kernels: a ring of pages, turns of thread blocks, tilings. Each test
// runs for the portable kernel (no bulk copies) and for Hopper's, if there is a real or simulated
// Hopper. The rest is in the op's shared tests.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cuda/attention_on_device.h"
#include "tests/testing/kernels/attention_rounding.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

using testing::DiffLlamaSpec;
using testing::ImageBatch;
using testing::PlainSpec;
using testing::SameBits;
using testing::SequenceShape;
using testing::V2Spec;

class DiffPrefillTest : public testing::OnDeviceTest, public ::testing::WithParamInterface<bool> {
 protected:
  static bool IsHopper() { return GetParam(); }
  static int SmallestHeadDim() { return IsHopper() ? 64 : 48; }
  // One spec for each way in which Hopper's warpgroups share rows and maps.
  static std::vector<DiffSpec> EveryForm() {
    if (!IsHopper()) return {DiffLlamaSpec(3, 1, 48), PlainSpec(2, 1, 48)};
    return {DiffLlamaSpec(3, 1, 64), DiffLlamaSpec(1, 1, 128), V2Spec(2, 1, 64),
            PlainSpec(2, 1, 64)};
  }
  static std::vector<float> Prefill(ImageBatch& batch) {
    return testing::Prefill(batch, IsHopper());
  }
  static void ExpectLikeReference(const DiffSpec& spec, const std::vector<SequenceShape>& shapes) {
    ImageBatch batch(spec, shapes);
    testing::ExpectLikeReference(batch, Prefill(batch));
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, DiffPrefillTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "Hopper" : "Portable";
                         });

TEST_P(DiffPrefillTest, MorePagesThanAWarpHasLanesMatchTheReference) {
  SimulateMultiprocessors(1);
  ExpectLikeReference(PlainSpec(1, 1, SmallestHeadDim()), {{33 * 64 - 3, 5}});
}

TEST_P(DiffPrefillTest, EveryNumberOfStagesGivesTheSameBits) {
  ImageBatch batch(V2Spec(2, 1, 64), {{200, 20}, {0, 9}});
  const std::vector<float> expected = Prefill(batch);
  testing::ExpectLikeReference(batch, expected);
  for (int pages : {1, 2, 3}) {  // of 16 KiB
    if (IsHopper() && pages == 1) continue;
    SimulateSharedBytes((16 * pages + 2) << 10);  // the rest: barriers and what rows need
    EXPECT_TRUE(SameBits(Prefill(batch), expected));
  }
}

TEST_P(DiffPrefillTest, AnyNumberOfMultiprocessorsGivesTheSameBits) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch(spec, {{10, 70}, {0, 0}, {100, 5}});
    SimulateMultiprocessors(4);
    const std::vector<float> expected = Prefill(batch);
    testing::ExpectLikeReference(batch, expected);
    SimulateMultiprocessors(1);
    EXPECT_TRUE(SameBits(Prefill(batch), expected));
  }
}

TEST_P(DiffPrefillTest, EveryScheduleAndEveryTimingOfCopiesGivesTheSameBits) {
  SimulateMultiprocessors(1);  // more pages per thread block than its ring has stages
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch(spec, {{130, 7}, {60, 7}});
    const std::vector<float> expected = Prefill(batch);
    OnEverySchedule([&] { EXPECT_TRUE(SameBits(Prefill(batch), expected)); });
  }
}

TEST_P(DiffPrefillTest, QuantisedLogitsHaveTheSameBitsOnEveryScheduleAndNumberOfMultiprocessors) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch(spec, {{130, 7}, {60, 70}, {0, 0}});
    for (LogitScale scale : kLogitScales) {
      batch.logit_quant = {4, scale};
      SimulateMultiprocessors(4);
      const std::vector<float> expected = Prefill(batch);
      SimulateMultiprocessors(1);  // more pages per thread block than its ring has stages
      OnEverySchedule([&] { EXPECT_TRUE(SameBits(Prefill(batch), expected)); });
    }
  }
}

TEST_P(DiffPrefillTest, AnyNumberOfMultiprocessorsAndStagesGivesTheSameBitsOfAWindow) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch(spec, {{310, 70}, {0, 0}, {100, 5}});
    batch.window = 75;
    batch.ForgetPagesBehindWindow();
    SimulateMultiprocessors(4);
    const std::vector<float> expected = Prefill(batch);
    testing::ExpectLikeReference(batch, expected);
    SimulateMultiprocessors(1);  // more pages per thread block than its ring has stages
    OnEverySchedule([&] { EXPECT_TRUE(SameBits(Prefill(batch), expected)); });
  }
}

TEST_P(DiffPrefillTest, HopperHasItsOwnKernelsForEveryPageTypeAndWindow) {
  for (const DiffSpec& spec : EveryForm()) {
    for (DType pages : cuda::kPageTypes) {
      for (int window : {0, 80, 30}) {
        ImageBatch batch(spec, {{10, 70}}, 1, 1, {}, pages);
        batch.window = window;
        EXPECT_EQ(bool{SameBits(Prefill(batch), testing::Prefill(batch, false))}, !IsHopper())
            << testing::Describe(spec) << " " << NameOf(pages) << " " << window;
      }
    }
  }
}

// Memory for one, two or all three groups at a time. With memory for two, the last is alone.
TEST_P(DiffPrefillTest, AnyNumberOfWidenedGroupsGivesTheSameBits) {
  for (const DiffSpec& spec : {testing::GroupedSpec(3, 64), testing::GroupedSpec(3, 128)}) {
    for (const DType pages : {DType::kInt8, DType::kInt4}) {
      ImageBatch batch(spec, {{10, 70}, {0, 0}, {200, 5}}, 1, 1, {}, pages);
      batch.window = 90;
      batch.ForgetPagesBehindWindow();
      std::vector<std::vector<BFloat16>> outs;
      for (int groups : {1, 2, 3}) {
        testing::AttentionRun run(batch, cuda::DiffPrefillTiling(spec, IsHopper(), batch.window),
                                  *stream_, {}, groups);
        run.Queue(IsHopper());
        outs.push_back(run.Out());
      }
      testing::ExpectLikeReference(batch, testing::ToFloats(outs[0]), 4, 2.5);
      EXPECT_EQ(outs[1], outs[0]);
      EXPECT_EQ(outs[2], outs[0]);
    }
  }
}

TEST_P(DiffPrefillTest, TooLittleMemoryForWidenedPagesIsReported) {
  if (cuda::WidenedPageBytes(DiffLlamaSpec(1, 1, 64), IsHopper()) == 0) return;
  ImageBatch batch(DiffLlamaSpec(1, 1, 64), {{0, 3}}, 1, 1, {}, DType::kInt8);
  DiffAttentionArgs<BFloat16> args;
  args.spec = batch.spec;
  args.batch.num_tokens = 3;
  args.kv.format = cuda::ImageFormat(batch.spec, DType::kInt8);
  cuda::AttentionSchedule schedule;
  schedule.tiling = cuda::DiffPrefillTiling(batch.spec);
  schedule.widened.num_pages = 3;
  schedule.widened.size_bytes = 3 * cuda::WidenedPageBytes(batch.spec) - 1;
  const Status status = cuda::DiffAttention(args, schedule, *stream_);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("no memory for attention's pages"));
}

TEST_P(DiffPrefillTest, TilingOfAnotherDeviceIsRefused) {
  ImageBatch batch(DiffLlamaSpec(1, 1, 64), {{0, 3}});
  DiffAttentionArgs<BFloat16> args;
  args.spec = batch.spec;
  args.batch.num_tokens = 3;
  args.kv.format = cuda::ImageFormat(batch.spec);
  cuda::AttentionSchedule schedule;
  schedule.allow_bulk_copies = IsHopper();
  schedule.tiling = cuda::DiffPrefillTiling(batch.spec, IsHopper());
  schedule.tiling.rows_per_tile *= 2;
  EXPECT_FALSE(cuda::DiffAttention(args, schedule, *stream_).ok());
}

TEST_P(DiffPrefillTest, TilingOfAnotherWindowIsRefused) {
  ImageBatch batch(DiffLlamaSpec(1, 1, 64), {{0, 3}});
  DiffAttentionArgs<BFloat16> args;
  args.spec = batch.spec;
  args.batch.num_tokens = 3;
  args.kv.format = cuda::ImageFormat(batch.spec);
  args.window = 7;
  cuda::AttentionSchedule schedule;
  schedule.allow_bulk_copies = IsHopper();
  for (int window : {0, 8}) {
    schedule.tiling = cuda::DiffPrefillTiling(batch.spec, IsHopper(), window);
    const Status status = cuda::DiffAttention(args, schedule, *stream_);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("window")) << window;
  }
}

}  // namespace
}  // namespace diffserve
