// The decode kernels against the double-precision reference, and exact cases: on a GPU, or their
// own source on the CPU shim.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cuda/attention_cases.h"

namespace diffserve {
namespace {

using testing::DiffLlamaSpec;
using testing::ErrorsOf;
using testing::ExpectWithinTwiceTheRounding;
using testing::GroupedSpec;
using ::testing::HasSubstr;
using testing::ImageBatch;
using testing::ImageShape;
using testing::PlainSpec;
using testing::SameBits;
using testing::V2Spec;

void ExpectLikeReference(ImageBatch& batch) {
  testing::ExpectWithinTheRounding(batch, 2, {batch.Decode(true), batch.Decode(false)});
}

void ExpectLikeReference(const DiffSpec& spec, const std::vector<ImageShape>& shapes) {
  ImageBatch batch(spec, shapes);
  ExpectLikeReference(batch);
}

class DiffDecodeTest : public testing::OnDeviceTest {};

const std::vector<ImageShape> kMixedBatch = {{0, 1}, {70, 1}, {520, 1}, {61, 2}, {15, 1}};

TEST_F(DiffDecodeTest, EveryFamilyMatchesTheReference) {
  ExpectLikeReference(DiffLlamaSpec(4, 2, 64), kMixedBatch);
  ExpectLikeReference(V2Spec(4, 2, 64), kMixedBatch);
  ExpectLikeReference(PlainSpec(4, 2, 64), kMixedBatch);
  ExpectLikeReference(GroupedSpec(2, 64), kMixedBatch);
}

// compute-sanitizer's racecheck takes this one: bulk copies give it false alarms.
TEST_F(DiffDecodeTest, WithoutBulkCopiesAMixedBatchMatchesTheReference) {
  for (const DiffSpec& spec : {DiffLlamaSpec(2, 1, 64), PlainSpec(4, 2, 64)}) {
    ImageBatch batch(spec, kMixedBatch);
    ExpectWithinTwiceTheRounding(batch, batch.Decode(false));
  }
}

TEST_F(DiffDecodeTest, EveryShapeWithAKernelMatchesTheReference) {
  for (int head_dim : {48, 64, 96, 128}) {
    ExpectLikeReference(DiffLlamaSpec(2, 1, head_dim), {{40, 1}, {129, 1}});
    ExpectLikeReference(V2Spec(2, 1, head_dim), {{40, 1}, {129, 1}});
    ExpectLikeReference(PlainSpec(2, 1, head_dim), {{40, 1}, {129, 1}});
    if (head_dim % 64 != 0) continue;
    DiffSpec narrow_v = DiffLlamaSpec(2, 1, head_dim);
    narrow_v.v_dim = head_dim;
    ExpectLikeReference(narrow_v, {{90, 1}});
    DiffSpec wide_v = V2Spec(2, 1, head_dim);
    wide_v.v_dim = 2 * head_dim;
    ExpectLikeReference(wide_v, {{90, 1}});
  }
}

TEST_F(DiffDecodeTest, EveryRatioOfQueryHeadsToGroupsMatchesTheReference) {
  for (int ratio : {1, 2, 3, 7, 8, 9, 16, 17}) {
    ExpectLikeReference(V2Spec(2 * ratio, 2, 64), {{33, 1}, {64, 2}});
    ExpectLikeReference(PlainSpec(ratio, 1, 64), {{33, 1}, {64, 2}});
  }
}

TEST_F(DiffDecodeTest, EveryLengthAroundAStripAPageAndASplitMatchesTheReference) {
  std::vector<ImageShape> shapes;
  for (int length : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129})
    shapes.push_back({length - 1, 1});
  ExpectLikeReference(V2Spec(2, 1, 48), shapes);
  for (int length : {511, 512, 513, 576, 1025}) shapes.push_back({length - 1, 1});
  ImageBatch batch(DiffLlamaSpec(1, 1, 48), shapes);
  ExpectWithinTwiceTheRounding(batch, batch.Decode());
}

TEST_F(DiffDecodeTest, EveryNumberOfStagesMatchesTheReference) {
  for (int shared_kib : {24, 40, 60, 100, 140}) {  // one to four stages of strips of 4 KiB
    SimulateSharedBytes(shared_kib << 10);
    ExpectLikeReference(V2Spec(2, 1, 64), {{70, 1}, {0, 1}, {530, 1}});
  }
}

TEST_F(DiffDecodeTest, EveryScheduleAndEveryTimingOfCopiesGivesTheSameBits) {
  ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{100, 1}, {530, 1}});
  const std::vector<float> expected = batch.Decode();
  OnEverySchedule([&] {
    EXPECT_TRUE(SameBits(batch.Decode(true), expected));
    EXPECT_TRUE(SameBits(batch.Decode(false), expected));
  });
}

TEST_F(DiffDecodeTest, SequencesWithoutRowsAndAnEmptyBatchAreSkipped) {
  ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{0, 0}, {20, 1}, {100, 0}, {3, 2}, {0, 0}});
  ExpectLikeReference(batch);
  ImageBatch empty(DiffLlamaSpec(2, 1, 64), {{0, 0}});
  EXPECT_TRUE(empty.Decode().empty());
}

TEST_F(DiffDecodeTest, AnyLambdaAndScaleMatchTheReference) {
  for (float lambda : {-0.7f, 0.0f, 0.2f, 1.0f, 1.8f}) {
    DiffSpec spec = DiffLlamaSpec(2, 1, 64);
    spec.sub_norm = lambda < 0.5f ? SubNorm::kNone : SubNorm::kAffine;
    ImageBatch batch(spec, {{77, 1}, {3, 1}});
    batch.lambda = lambda;
    batch.out_scale = 1.25f;
    ExpectLikeReference(batch);
  }
}

TEST_F(DiffDecodeTest, LambdaZeroEqualsPlainAttentionToTheBit) {
  DiffSpec spec = V2Spec(4, 2, 64);
  spec.lambda_kind = LambdaKind::kPerLayer;
  ImageBatch batch(spec, {{20, 1}, {700, 1}});
  batch.lambda = 0;
  const std::vector<float> with_second_map = batch.Decode();
  std::vector<float> q1;
  const std::ptrdiff_t width = spec.q_width();
  for (int row = 0; row < batch.num_rows(); ++row) {
    q1.insert(q1.end(), batch.q.begin() + row * width, batch.q.begin() + row * width + width / 2);
  }
  batch.q = q1;
  batch.spec.num_q2_heads = 0;
  batch.spec.lambda_kind = LambdaKind::kNone;
  EXPECT_TRUE(SameBits(batch.Decode(), with_second_map));
}

TEST_F(DiffDecodeTest, EqualMapsWithLambdaOneGiveExactlyZero) {
  for (int k_maps : {1, 2}) {
    DiffSpec spec = DiffLlamaSpec(3, 1, 64);
    spec.k_maps = k_maps;
    ImageBatch batch(spec, {{90, 1}, {600, 1}});
    batch.lambda = 1;
    const size_t width = static_cast<size_t>(spec.q_width());
    for (size_t i = 0; i < batch.q.size(); ++i) {
      if (i % width >= width / 2) batch.q[i] = batch.q[i - width / 2];
    }
    for (size_t sequence = 0; sequence < 2 && k_maps == 2; ++sequence) {
      for (int slot = 0; slot <= batch.sequences[sequence].position; ++slot) {
        for (int d = 0; d < 64; ++d) {
          for (int map = 0; map < 2; ++map)
            batch.SetK(sequence, 0, slot, map, d,
                       static_cast<float>((slot * 7 + d * 3) % 11) / 8 - 0.5f);
        }
      }
    }
    for (float value : batch.Decode()) ASSERT_EQ(value, 0.0f);
  }
}

TEST_F(DiffDecodeTest, EqualScoresAverageIntegerValuesExactly) {
  for (int length : {128, 1024}) {  // with q = 0 every slot weighs the same: o = (1 - lambda) *
                                    // mean
    DiffSpec spec = DiffLlamaSpec(2, 1, 64);
    spec.sub_norm = SubNorm::kNone;
    ImageBatch batch(spec, {{length - 1, 1}});
    batch.lambda = 0.5f;
    batch.out_scale = 1;
    std::fill(batch.q.begin(), batch.q.end(), 0.0f);
    for (int slot = 0; slot < length; ++slot) {
      for (int d = 0; d < spec.v_dim; ++d)
        batch.SetV(0, 0, slot, d, static_cast<float>((slot + d) % 8));
    }
    for (float value : batch.Decode()) ASSERT_EQ(value, 1.75f);
  }
}

// Each head's q picks one slot by a score far above all others, so the output is that slot's V,
// exactly: any wrong row, dim, page, swizzle or fragment shows as another number.
TEST_F(DiffDecodeTest, AQueryThatPicksOneSlotReadsItsVExactly) {
  for (int head_dim : {48, 64, 96, 128}) {
    DiffSpec spec = DiffLlamaSpec(2, 1, head_dim);
    spec.sub_norm = SubNorm::kNone;
    ImageBatch batch(spec, {{139, 1}});
    batch.lambda = 1;
    batch.out_scale = 1;
    for (int slot = 0; slot < 140; ++slot) {  // K1 holds the slot's number in one-hot digits of 12,
                                              // K2 that of slot + 5
      for (int map = 0; map < 2; ++map) {
        const int number = (slot + 5 * map) % 140;
        for (int d = 0; d < head_dim; ++d)
          batch.SetK(0, 0, slot, map, d, d == number % 12 || d == 12 + number / 12 ? 1.0f : 0.0f);
      }
      for (int d = 0; d < spec.v_dim; ++d)
        batch.SetV(0, 0, slot, d, static_cast<float>((slot * 31 + d * 17) % 128));
    }
    for (int pick : {0, 7, 16, 63, 64, 77, 138, 139}) {
      for (int head = 0; head < 4; ++head) {
        const int number = (pick + head % 2) % 140;
        for (int d = 0; d < head_dim; ++d) {
          batch.q[static_cast<size_t>(head * head_dim + d)] =
              d == number % 12 || d == 12 + number / 12 ? 4096.0f : 0.0f;
        }
      }
      const std::vector<float> out = batch.Decode();
      for (int head = 0; head < 2; ++head) {
        const int slot1 = (pick + head) % 140;
        const int slot2 = (slot1 + 135) % 140;
        for (int d = 0; d < spec.v_dim; ++d) {
          const int expected = (slot1 * 31 + d * 17) % 128 - (slot2 * 31 + d * 17) % 128;
          ASSERT_EQ(out[static_cast<size_t>(head * spec.v_dim + d)], static_cast<float>(expected))
              << pick << " " << head << " " << d;
        }
      }
    }
  }
}

TEST_F(DiffDecodeTest, VeryUnequalScoresStayFiniteAndMatchTheReference) {
  ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{150, 1}, {620, 1}});
  for (float& value : batch.q) value *= 256.0f;
  const std::vector<float> expected = batch.Reference();
  EXPECT_LE(ErrorsOf(batch.Decode(), expected).max, 0.02);
}

TEST_F(DiffDecodeTest, ANanInOneQueryStaysInItsHead) {
  const DiffSpec spec = DiffLlamaSpec(2, 1, 64);
  ImageBatch batch(spec, {{100, 1}, {600, 1}});
  const std::vector<float> clean = batch.Decode();
  batch.q[64] = std::numeric_limits<float>::quiet_NaN();  // q1 of head 1, first row
  const std::vector<float> out = batch.Decode();
  for (size_t i = 0; i < out.size(); ++i) {
    const bool is_hit = i >= 128 && i < 256;
    ASSERT_EQ(std::isnan(out[i]), is_hit) << i;
    if (is_hit) continue;
    ASSERT_EQ(out[i], clean[i]) << i;
  }
}

TEST_F(DiffDecodeTest, ThePlacesOfPagesChangeNoBit) {
  const DiffSpec spec = GroupedSpec(1, 64);
  ImageBatch one(spec, {{300, 1}, {650, 1}}, 1, 1);
  ImageBatch other(spec, {{300, 1}, {650, 1}}, 1, 99);
  EXPECT_TRUE(SameBits(other.Decode(), one.Decode()));
}

TEST_F(DiffDecodeTest, WhoeverSharesTheBatchARowsBitsAreTheSame) {
  for (const DiffSpec& spec : {DiffLlamaSpec(2, 1, 64), PlainSpec(3, 1, 64)}) {
    const std::vector<ImageShape> shapes = {{600, 1}, {30, 1}, {64, 3}, {1030, 1}, {0, 1}};
    ImageBatch together(spec, shapes);
    const std::vector<float> all = together.Decode();
    size_t begin = 0;
    for (uint32_t i = 0; i < shapes.size(); ++i) {
      SimulateMultiprocessors(1 + static_cast<int>(i));
      ImageBatch alone(spec, {shapes[i]}, 1, 5, {i});
      const std::vector<float> out = alone.Decode();
      EXPECT_TRUE(SameBits(
          out, std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                  all.begin() + static_cast<std::ptrdiff_t>(begin + out.size()))))
          << i;
      begin += out.size();
    }
  }
}

TEST_F(DiffDecodeTest, HoweverARunOfTokensIsCutARowsBitsAreTheSame) {
  for (const DiffSpec& spec : {DiffLlamaSpec(3, 1, 48), V2Spec(2, 1, 48)}) {
    ImageBatch whole(spec, {{508, 9}});
    const std::vector<float> expected = whole.Decode();
    for (const std::vector<int>& cuts :
         {std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 5}, {2, 6, 1}}) {
      std::vector<float> out;
      int position = 508;
      for (int rows : cuts) {
        // The same sequence, of which the slots behind this chunk are still NaNs.
        ImageBatch chunk(spec, {{position, rows}});
        const std::vector<float> part = chunk.Decode();
        out.insert(out.end(), part.begin(), part.end());
        position += rows;
      }
      EXPECT_TRUE(SameBits(out, expected));
    }
  }
}

TEST_F(DiffDecodeTest, AShapeOrAFormatWithoutAKernelIsRefusedByName) {
  const auto refusal = [](const DiffSpec& spec, int page_size, DType dtype) {
    const char* reason = cuda::DiffAttentionUnsupported(
        spec, KvFormat::Of(spec, page_size, dtype, KvArrangement::kImage));
    return std::string(reason == nullptr ? "" : reason);
  };
  const DiffSpec spec = DiffLlamaSpec(4, 2, 128);
  EXPECT_EQ(refusal(spec, 64, DType::kBFloat16), "");
  EXPECT_THAT(refusal(spec, 16, DType::kBFloat16), HasSubstr("pages of 64"));
  EXPECT_THAT(refusal(spec, 64, DType::kFloat16), HasSubstr("dtype"));
  EXPECT_THAT(refusal(DiffLlamaSpec(4, 2, 80), 64, DType::kBFloat16), HasSubstr("head_dim"));
  EXPECT_THAT(refusal(DiffLlamaSpec(4, 3, 128), 64, DType::kBFloat16), HasSubstr("groups"));
  DiffSpec no_noise = spec;
  no_noise.num_q2_heads = 0;
  EXPECT_THAT(refusal(no_noise, 64, DType::kBFloat16), HasSubstr("noise heads"));
}

}  // namespace
}  // namespace diffserve
