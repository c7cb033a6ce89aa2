// The portable prefill kernel's own source, run on the CPU, against the double-precision reference, and exact cases.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/shim/attention_cases.h"

namespace diffserve {
namespace {

using testing::DiffLlamaSpec;
using testing::ExpectWithinTwiceTheRounding;
using testing::GroupedSpec;
using testing::ImageBatch;
using testing::ImageShape;
using testing::PlainSpec;
using testing::SameBits;
using testing::V2Spec;

class DiffPrefillTest : public ::testing::Test {
 protected:
  ~DiffPrefillTest() override {
    shim::SetGridOptions({});
    shim::simulated_device = {};
  }
};

void ExpectLikeReference(const DiffSpec& spec, const std::vector<ImageShape>& shapes) {
  ImageBatch batch(spec, shapes);
  ExpectWithinTwiceTheRounding(batch, batch.Prefill());
}

TEST_F(DiffPrefillTest, EveryFamilyMatchesTheReference) {
  const std::vector<ImageShape> shapes = {{0, 70}, {0, 0}, {100, 17}, {64, 1}, {3, 30}};
  ExpectLikeReference(DiffLlamaSpec(2, 1, 64), shapes);
  ExpectLikeReference(V2Spec(4, 2, 64), shapes);
  ExpectLikeReference(PlainSpec(4, 2, 64), shapes);
  ExpectLikeReference(GroupedSpec(1, 64), shapes);
}

TEST_F(DiffPrefillTest, EveryShapeWithAKernelMatchesTheReference) {
  for (int head_dim : {48, 64, 96, 128}) {
    ExpectLikeReference(DiffLlamaSpec(1, 1, head_dim), {{40, 12}});
    ExpectLikeReference(V2Spec(1, 1, head_dim), {{40, 12}});
    ExpectLikeReference(PlainSpec(1, 1, head_dim), {{40, 12}});
    if (head_dim % 64 != 0) continue;
    DiffSpec narrow_v = DiffLlamaSpec(1, 1, head_dim);
    narrow_v.v_dim = head_dim;
    ExpectLikeReference(narrow_v, {{90, 3}});
    DiffSpec wide_v = V2Spec(1, 1, head_dim);
    wide_v.v_dim = 2 * head_dim;
    ExpectLikeReference(wide_v, {{90, 3}});
  }
}

TEST_F(DiffPrefillTest, EveryRatioOfQueryHeadsToGroupsMatchesTheReference) {
  for (int ratio : {1, 3, 8, 17}) {
    ExpectLikeReference(V2Spec(ratio, 1, 48), {{33, 9}});
    ExpectLikeReference(PlainSpec(ratio, 1, 48), {{33, 9}});
  }
}

TEST_F(DiffPrefillTest, EveryLengthAroundAStripAndAPageMatchesTheReference) {
  for (int length : {1, 15, 16, 17, 63, 64, 65, 129}) {
    ExpectLikeReference(DiffLlamaSpec(1, 1, 48), {{0, length}});
    ExpectLikeReference(PlainSpec(1, 1, 48), {{std::max(0, length - 3), std::min(length, 3)}});
  }
}

TEST_F(DiffPrefillTest, EveryNumberOfStagesGivesTheSameBits) {
  ImageBatch batch(V2Spec(2, 1, 64), {{200, 20}, {0, 9}});
  const std::vector<float> expected = batch.Prefill();
  ExpectWithinTwiceTheRounding(batch, expected);
  for (int shared_kib : {17, 33, 50}) {
    shim::simulated_device.shared_bytes_per_block_max = shared_kib << 10;
    EXPECT_TRUE(SameBits(batch.Prefill(), expected));
  }
}

TEST_F(DiffPrefillTest, EveryScheduleAndEveryTimingOfCopiesGivesTheSameBits) {
  ImageBatch batch(DiffLlamaSpec(1, 1, 64), {{130, 20}, {60, 7}});
  const std::vector<float> expected = batch.Prefill();
  for (shim::CopyTiming timing : {shim::CopyTiming::kEarly, shim::CopyTiming::kLate, shim::CopyTiming::kShuffled}) {
    for (uint32_t seed = 2; seed < 4; ++seed) {
      shim::SetGridOptions({.seed = seed, .copy_timing = timing});
      EXPECT_TRUE(SameBits(batch.Prefill(), expected));
    }
  }
}

TEST_F(DiffPrefillTest, HoweverAPromptIsCutAndWhoeverSharesTheBatchARowsBitsAreTheSame) {
  for (const DiffSpec& spec : {DiffLlamaSpec(3, 1, 48), PlainSpec(2, 1, 48)}) {
    ImageBatch whole(spec, {{0, 100}});
    const std::vector<float> expected = whole.Prefill();
    for (const std::vector<int>& cuts : {std::vector<int>{1, 63, 36}, {40, 1, 59}}) {
      std::vector<float> out;
      int position = 0;
      for (int rows : cuts) {
        ImageBatch chunk(spec, {{position, rows}, {5, 12}});  // the slots behind this chunk are still NaNs
        std::vector<float> part = chunk.Prefill();
        part.resize(static_cast<size_t>(rows) * static_cast<size_t>(spec.out_width()));
        out.insert(out.end(), part.begin(), part.end());
        position += rows;
      }
      EXPECT_TRUE(SameBits(out, expected));
    }
  }
}

TEST_F(DiffPrefillTest, LambdaZeroEqualsPlainAttentionToTheBit) {
  DiffSpec spec = V2Spec(2, 1, 64);
  spec.lambda_kind = LambdaKind::kPerLayer;
  ImageBatch batch(spec, {{20, 30}});
  batch.lambda = 0;
  const std::vector<float> with_second_map = batch.Prefill();
  std::vector<float> q1;
  const std::ptrdiff_t width = spec.q_width();
  for (int row = 0; row < batch.num_rows(); ++row) {
    q1.insert(q1.end(), batch.q.begin() + row * width, batch.q.begin() + row * width + width / 2);
  }
  batch.q = q1;
  batch.spec.num_q2_heads = 0;
  batch.spec.lambda_kind = LambdaKind::kNone;
  EXPECT_TRUE(SameBits(batch.Prefill(), with_second_map));
}

TEST_F(DiffPrefillTest, EqualMapsWithLambdaOneGiveExactlyZero) {
  DiffSpec spec = V2Spec(3, 1, 64);
  spec.lambda_kind = LambdaKind::kPerLayer;
  spec.sub_norm = SubNorm::kPlain;
  ImageBatch batch(spec, {{90, 20}});
  batch.lambda = 1;
  const size_t width = static_cast<size_t>(spec.q_width());
  for (size_t i = 0; i < batch.q.size(); ++i) {
    if (i % width >= width / 2) batch.q[i] = batch.q[i - width / 2];
  }
  for (float value : batch.Prefill()) ASSERT_EQ(value, 0.0f);
}

TEST_F(DiffPrefillTest, ANanInOneQueryStaysInItsRow) {
  ImageBatch batch(DiffLlamaSpec(1, 1, 64), {{10, 20}});
  const std::vector<float> clean = batch.Prefill();
  batch.q[5 * 128 + 64] = std::numeric_limits<float>::quiet_NaN();  // q2 of row 5
  const std::vector<float> out = batch.Prefill();
  for (size_t i = 0; i < out.size(); ++i) {
    const bool is_hit = i / 128 == 5;
    ASSERT_EQ(std::isnan(out[i]), is_hit) << i;
    if (is_hit) continue;
    ASSERT_EQ(out[i], clean[i]) << i;
  }
}

}  // namespace
}  // namespace diffserve
