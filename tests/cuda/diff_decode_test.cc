// SPDX-License-Identifier: Apache-2.0
// Features of only the decode kernels: splits, a ring of strips, bulk copies, errors. The rest is
// in the op's shared tests.
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
using ::testing::HasSubstr;
using testing::ImageBatch;
using testing::PlainSpec;
using testing::SameBits;
using testing::SequenceShape;
using testing::V2Spec;

void ExpectLikeReference(const DiffSpec& spec, const std::vector<SequenceShape>& shapes) {
  ImageBatch batch(spec, shapes);
  for (bool bulk_copies : {true, false})
    testing::ExpectLikeReference(batch, testing::Decode(batch, bulk_copies));
}

class DiffDecodeTest : public testing::OnDeviceTest {
 protected:
  // Rows on both sides of the length beyond which splits are larger.
  void ExpectSameBitsAround(const DiffSpec& spec, int length, int window) {
    const auto decode = [&](const std::vector<SequenceShape>& shapes) {
      ImageBatch batch(spec, shapes, 1, 1, std::vector<uint32_t>(shapes.size(), 5));
      batch.window = window;
      batch.ForgetPagesBehindWindow();
      std::vector<float> out = testing::Decode(batch);
      testing::ExpectLikeReference(batch, out);
      return out;
    };
    std::vector<float> together = decode({{length - 2, 2}, {length, 2}, {70, 1}});
    std::vector<float> alone;
    for (int position = length - 2; position < length + 2; ++position) {
      const std::vector<float> row = decode({{position, 1}});
      alone.insert(alone.end(), row.begin(), row.end());
    }
    together.resize(alone.size());
    EXPECT_TRUE(SameBits(together, alone)) << length << ", window " << window;
  }
};

const std::vector<SequenceShape> kMixedBatch = {{0, 1}, {70, 1}, {520, 1}, {61, 2}, {15, 1}};

#if defined(DIFFSERVE_CUDA_ON_CPU)
// From Hopper on; wgmma is on Hopper alone.
TEST_F(DiffDecodeTest, NewerDevicesHaveBulkCopies) {
  const DiffSpec spec = DiffLlamaSpec(2, 1, 64);
  ImageBatch batch(spec, kMixedBatch);
  const std::vector<float> expected = testing::Decode(batch, false);
  for (const int major : {8, 9, 10, 12}) {
    SimulateComputeCapability(major);
    shim::bulk_copies = 0;
    EXPECT_TRUE(SameBits(testing::Decode(batch), expected)) << major;
    EXPECT_EQ(shim::bulk_copies > 0, major >= 9) << major;
    const int rows = cuda::DiffPrefillTiling(spec).rows_per_tile;
    SimulateComputeCapability(8);
    EXPECT_EQ(rows == cuda::DiffPrefillTiling(spec).rows_per_tile, major != 9);
  }
}
#endif

// Used with compute-sanitizer's racecheck: bulk copies give it false alarms.
TEST_F(DiffDecodeTest, MixedBatchWithoutBulkCopiesMatchesTheReference) {
  for (const DiffSpec& spec : {DiffLlamaSpec(2, 1, 64), PlainSpec(4, 2, 64)}) {
    ImageBatch batch(spec, kMixedBatch);
    testing::ExpectLikeReference(batch, testing::Decode(batch, false));
  }
}

TEST_F(DiffDecodeTest, EveryLengthAroundAStripAPageAndASplitMatchesTheReference) {
  std::vector<SequenceShape> shapes;
  for (int length : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129})
    shapes.push_back({length - 1, 1});
  ExpectLikeReference(V2Spec(2, 1, 48), shapes);
  for (int length : {255, 256, 257, 320, 1025}) shapes.push_back({length - 1, 1});
  ImageBatch batch(DiffLlamaSpec(1, 1, 48), shapes);
  testing::ExpectLikeReference(batch, testing::Decode(batch));
}

TEST_F(DiffDecodeTest, EveryNumberOfStagesMatchesTheReference) {
  // Strips of 6 KiB per warp, or from 66 KiB on two to four pages of 24 KiB.
  for (int shared_kib : {24, 40, 60, 66, 90, 140, 227}) {
    SimulateSharedBytes(shared_kib << 10);
    ExpectLikeReference(V2Spec(2, 1, 64), {{70, 1}, {0, 1}, {530, 1}});
  }
}

TEST_F(DiffDecodeTest, EveryScheduleAndEveryTimingOfCopiesGivesTheSameBits) {
  ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{100, 1}, {530, 1}});
  const std::vector<float> expected = testing::Decode(batch);
  OnEverySchedule([&] {
    EXPECT_TRUE(SameBits(testing::Decode(batch, true), expected));
    EXPECT_TRUE(SameBits(testing::Decode(batch, false), expected));
  });
}

// A decode of the same pages is before it.
TEST_F(DiffDecodeTest, EarlyStartGivesTheSameBits) {
  for (const DiffSpec& spec : {DiffLlamaSpec(2, 1, 64), PlainSpec(4, 2, 64)}) {
    ImageBatch batch(spec, {{100, 1}, {0, 1}, {530, 2}, {63, 1}, {64, 1}});
    const std::vector<float> expected = testing::Decode(batch);
    OnEverySchedule([&] {
      testing::AttentionRun run(
          batch, cuda::DiffDecodeTiling(spec, testing::RowsPerSequenceMax(batch)), *stream_);
      run.Queue();
      run.PoisonOut();
      run.Queue();
      run.Queue(/*bulk_copies=*/true, /*follows_kernel=*/true);
      EXPECT_TRUE(SameBits(testing::ToFloats(run.Out()), expected));
    });
  }
}

// The rows end in the first split and the second, or in the fifth, which makes one more quarter of
// two splits, and the sixth.
TEST_F(DiffDecodeTest, RowIsBitwiseIndependentOfChunks) {
  for (const auto& [spec, begin] : {std::pair{DiffLlamaSpec(3, 1, 48), 252},
                                    {V2Spec(2, 1, 48), 252},
                                    {V2Spec(2, 1, 16), 1276}}) {
    ImageBatch whole(spec, {{begin, 9}});
    const std::vector<float> expected = testing::Decode(whole);
    for (const std::vector<int>& cuts :
         {std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 5}, {2, 6, 1}}) {
      std::vector<float> out;
      int position = begin;
      for (int rows : cuts) {
        // The same sequence; the slots after this chunk are still NaNs.
        ImageBatch chunk(spec, {{position, rows}});
        const std::vector<float> part = testing::Decode(chunk);
        out.insert(out.end(), part.begin(), part.end());
        position += rows;
      }
      EXPECT_TRUE(SameBits(out, expected)) << begin;
    }
  }
}

// Few queries are eight columns of a product, more are sixteen.
TEST_F(DiffDecodeTest, RowHasTheSameBitsInOneTileOfColumnsAndInTwo) {
  for (DType dtype : cuda::kPageTypes) {
    for (const DiffSpec& spec : {DiffLlamaSpec(3, 1, 48), DiffLlamaSpec(4, 1, 64), V2Spec(4, 1, 64),
                                 PlainSpec(8, 1, 64)}) {
      const auto decode = [&](const std::vector<SequenceShape>& shapes) {
        ImageBatch batch(spec, shapes, 1, 1, std::vector<uint32_t>(shapes.size(), 5), dtype);
        return testing::Decode(batch);
      };
      std::vector<float> in_two = decode({{530, 1}, {70, 2}});
      const std::vector<float> in_one = decode({{530, 1}});
      in_two.resize(in_one.size());
      EXPECT_TRUE(SameBits(in_one, in_two)) << NameOf(dtype) << ", " << spec.head_dim;
    }
  }
}

TEST_F(DiffDecodeTest, RowsAroundTheLengthsWhereSplitsGrowHaveTheSameBitsAloneAndTogether) {
  const DiffSpec spec = V2Spec(2, 1, 16);
  for (int window : {0, 4096, 4097}) ExpectSameBitsAround(spec, 4096, window);
  for (int window : {0, 16384, 16385}) ExpectSameBitsAround(spec, 16384, window);
  if (testing::kHasGpu) ExpectSameBitsAround(DiffLlamaSpec(4, 1, 128), 65536, 0);
}

// The window's begin crosses a split's end within the run, as does its last slot.
TEST_F(DiffDecodeTest, WindowedRowIsBitwiseIndependentOfChunks) {
  for (const LogitQuant& quant :
       {LogitQuant{}, LogitQuant{4, LogitScale::kRow}, LogitQuant{6, LogitScale::kTile}}) {
    for (int window : {100, 256, 259, 700}) {
      const auto decode = [&](int position, int rows) {
        ImageBatch batch(DiffLlamaSpec(3, 1, 48), {{position, rows}});
        batch.window = window;
        batch.logit_quant = quant;
        batch.ForgetPagesBehindWindow();
        return testing::Decode(batch);
      };
      const std::vector<float> expected = decode(1020, 9);
      for (const std::vector<int>& cuts :
           {std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 5}, {2, 6, 1}}) {
        std::vector<float> out;
        int position = 1020;
        for (int rows : cuts) {
          const std::vector<float> part = decode(position, rows);
          out.insert(out.end(), part.begin(), part.end());
          position += rows;
        }
        EXPECT_TRUE(SameBits(out, expected)) << window;
      }
    }
  }
}

TEST_F(DiffDecodeTest, WindowHasTheSameBitsOnEveryScheduleAndNumberOfStages) {
  ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{300, 1}, {1230, 2}});
  batch.window = 530;
  batch.ForgetPagesBehindWindow();
  const std::vector<float> expected = testing::Decode(batch);
  testing::ExpectLikeReference(batch, expected);
  OnEverySchedule([&] { EXPECT_TRUE(SameBits(testing::Decode(batch), expected)); });
  for (int shared_kib : {40, 100, 140}) {
    SimulateSharedBytes(shared_kib << 10);
    EXPECT_TRUE(SameBits(testing::Decode(batch), expected)) << shared_kib;
  }
}

// Rows that pad a graph's batch belong to no sequence and have neither items nor partials.
TEST_F(DiffDecodeTest, PaddingRowsOfABatchAreNotWritten) {
  constexpr int kPadded = 3;
  for (int window : {0, 530}) {
    ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{1230, 1}, {70, 1}});
    batch.window = window;
    batch.ForgetPagesBehindWindow();
    std::vector<float> expected = testing::Decode(batch);
    expected.resize(expected.size() + size_t{kPadded} * static_cast<size_t>(batch.spec.out_width()),
                    BFloat16ToFloat(testing::kUnwrittenOut));
    for (bool bulk_copies : {true, false}) {
      testing::AttentionRun run(batch, cuda::DiffDecodeTiling(batch.spec, 1, window), *stream_,
                                {.num_padded = kPadded});
      run.Queue(bulk_copies);
      EXPECT_TRUE(SameBits(testing::ToFloats(run.Out()), expected)) << window;
    }
  }
}

// A row's extent spans its splits, whose kernels run separately.
TEST_F(DiffDecodeTest, QuantisedLogitsAreIndependentOfChunks) {
  for (const LogitQuant& quant : testing::LogitQuants()) {
    ImageBatch whole(DiffLlamaSpec(3, 1, 48), {{508, 9}});
    whole.logit_quant = quant;
    const std::vector<float> expected = testing::Decode(whole);
    std::vector<float> out;
    int position = 508;
    for (int rows : {1, 2, 1, 5}) {
      ImageBatch chunk(whole.spec, {{position, rows}});
      chunk.logit_quant = quant;
      const std::vector<float> part = testing::Decode(chunk);
      out.insert(out.end(), part.begin(), part.end());
      position += rows;
    }
    EXPECT_TRUE(SameBits(out, expected)) << quant.bits << " " << NameOf(quant.scale);
  }
}

TEST_F(DiffDecodeTest, QuantisedLogitsHaveTheSameBitsOnEveryScheduleAndNumberOfStages) {
  ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{100, 1}, {530, 1}});
  for (LogitScale scale : kLogitScales) {
    batch.logit_quant = {4, scale};
    const std::vector<float> expected = testing::Decode(batch);
    OnEverySchedule([&] { EXPECT_TRUE(SameBits(testing::Decode(batch), expected)); });
    for (int shared_kib : {40, 100, 140}) {
      SimulateSharedBytes(shared_kib << 10);
      EXPECT_TRUE(SameBits(testing::Decode(batch), expected)) << shared_kib;
    }
  }
}

TEST_F(DiffDecodeTest, ShapeOrFormatWithoutAKernelIsRefusedByName) {
  const auto refusal = [](const DiffSpec& spec, int page_size, DType dtype) {
    const char* reason = cuda::DiffAttentionUnsupported(
        spec, KvFormat::Of(spec, page_size, dtype, KvArrangement::kImage));
    return std::string(reason == nullptr ? "" : reason);
  };
  const DiffSpec spec = DiffLlamaSpec(4, 2, 128);
  for (DType dtype : cuda::kPageTypes) EXPECT_EQ(refusal(spec, 64, dtype), "");
  EXPECT_THAT(refusal(spec, 16, DType::kBFloat16), HasSubstr("pages of 64"));
  EXPECT_THAT(refusal(spec, 64, DType::kFloat16), HasSubstr("dtype"));
  EXPECT_THAT(refusal(DiffLlamaSpec(4, 2, 24), 64, DType::kBFloat16), HasSubstr("head_dim"));
  EXPECT_THAT(refusal(DiffLlamaSpec(4, 3, 128), 64, DType::kBFloat16), HasSubstr("groups"));
  DiffSpec no_noise = spec;
  no_noise.num_q2_heads = 0;
  EXPECT_THAT(refusal(no_noise, 64, DType::kBFloat16), HasSubstr("noise heads"));
}

#if defined(DIFFSERVE_CUDA_ON_CPU)
// Consumer cards have 99 KiB.
TEST_F(DiffDecodeTest, WidestHeadsNeedAGpuWithEnoughSharedMemory) {
  const auto refusal = [](const DiffSpec& spec, DType dtype) {
    const char* reason = cuda::DiffAttentionUnsupported(spec, cuda::ImageFormat(spec, dtype));
    return std::string(reason == nullptr ? "" : reason);
  };
  for (DType dtype : cuda::kPageTypes) {
    SimulateSharedBytes(99 << 10);
    EXPECT_THAT(refusal(DiffLlamaSpec(2, 1, 256), dtype), HasSubstr("too little shared memory"));
    for (const DiffSpec& spec : {V2Spec(2, 1, 256), DiffLlamaSpec(2, 1, 128)})
      EXPECT_EQ(refusal(spec, dtype), "") << testing::Describe(spec);
    SimulateSharedBytes(163 << 10);
    EXPECT_EQ(refusal(DiffLlamaSpec(2, 1, 256), dtype), "");
  }
}
#endif

}  // namespace
}  // namespace diffserve
