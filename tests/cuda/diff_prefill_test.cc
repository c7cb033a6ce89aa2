// The prefill kernels against the double-precision reference, and exact cases: on a GPU, or their
// own source on the CPU shim. Each test runs for the portable kernel (no bulk copies) and for
// Hopper's, where a Hopper is or is simulated.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cuda/attention_cases.h"

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

DiffSpec WithVDim(DiffSpec spec, int v_dim) {
  spec.v_dim = v_dim;
  return spec;
}

class DiffPrefillTest : public testing::OnDeviceTest, public ::testing::WithParamInterface<bool> {
 protected:
  static bool IsHopper() { return GetParam(); }
  static int SmallestHeadDim() { return IsHopper() ? 64 : 48; }
  // One of each way in which Hopper's warpgroups share rows and maps.
  static std::vector<DiffSpec> EveryForm() {
    if (!IsHopper()) return {DiffLlamaSpec(3, 1, 48), PlainSpec(2, 1, 48)};
    return {DiffLlamaSpec(3, 1, 64), DiffLlamaSpec(1, 1, 128), V2Spec(2, 1, 64),
            PlainSpec(2, 1, 64)};
  }
  static std::vector<float> Prefill(ImageBatch& batch) { return batch.Prefill(IsHopper()); }
  static void ExpectLikeReference(const DiffSpec& spec, const std::vector<ImageShape>& shapes) {
    ImageBatch batch(spec, shapes);
    ExpectWithinTwiceTheRounding(batch, Prefill(batch));
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, DiffPrefillTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "Hopper" : "Portable";
                         });

TEST_P(DiffPrefillTest, EveryFamilyMatchesTheReference) {
  SimulateMultiprocessors(2);
  const std::vector<ImageShape> shapes = {{0, 70}, {0, 0}, {100, 17}, {64, 1}, {3, 30}};
  ExpectLikeReference(DiffLlamaSpec(2, 1, 64), shapes);
  ExpectLikeReference(V2Spec(4, 2, 64), shapes);
  ExpectLikeReference(PlainSpec(4, 2, 64), shapes);
  ExpectLikeReference(GroupedSpec(1, 64), shapes);
  ExpectLikeReference(GroupedSpec(1, 128), {{60, 20}, {0, 3}});
  ExpectLikeReference(V2Spec(4, 2, 128), {{60, 20}, {0, 3}});
}

TEST_P(DiffPrefillTest, EveryShapeWithAKernelMatchesTheReference) {
  SimulateMultiprocessors(1);
  for (int head_dim : {48, 64, 96, 128}) {
    if (IsHopper() && head_dim % 64 != 0) continue;
    ExpectLikeReference(DiffLlamaSpec(1, 1, head_dim), {{40, 12}});
    ExpectLikeReference(V2Spec(1, 1, head_dim), {{40, 12}});
    ExpectLikeReference(PlainSpec(1, 1, head_dim), {{40, 12}});
    if (head_dim % 64 != 0) continue;
    ExpectLikeReference(WithVDim(DiffLlamaSpec(1, 1, head_dim), head_dim), {{90, 3}});
    ExpectLikeReference(WithVDim(V2Spec(1, 1, head_dim), 2 * head_dim), {{90, 3}});
    ExpectLikeReference(WithVDim(PlainSpec(1, 1, head_dim), 2 * head_dim), {{90, 3}});
  }
}

TEST_P(DiffPrefillTest, EveryRatioOfQueryHeadsToGroupsMatchesTheReference) {
  SimulateMultiprocessors(1);
  for (int ratio : {1, 3, 8, 17}) {
    ExpectLikeReference(V2Spec(ratio, 1, SmallestHeadDim()), {{33, 9}});
    ExpectLikeReference(PlainSpec(ratio, 1, SmallestHeadDim()), {{33, 9}});
  }
}

TEST_P(DiffPrefillTest, EveryLengthAroundAStripAndAPageMatchesTheReference) {
  SimulateMultiprocessors(1);
  for (int length : {1, 15, 16, 17, 63, 64, 65, 129}) {
    ExpectLikeReference(DiffLlamaSpec(1, 1, SmallestHeadDim()), {{0, length}});
    ExpectLikeReference(PlainSpec(1, 1, SmallestHeadDim()),
                        {{std::max(0, length - 3), std::min(length, 3)}});
  }
}

TEST_P(DiffPrefillTest, MorePagesThanAWarpHasLanesMatchTheReference) {
  SimulateMultiprocessors(1);
  ExpectLikeReference(PlainSpec(1, 1, SmallestHeadDim()), {{33 * 64 - 3, 5}});
}

TEST_P(DiffPrefillTest, EveryNumberOfStagesGivesTheSameBits) {
  ImageBatch batch(V2Spec(2, 1, 64), {{200, 20}, {0, 9}});
  const std::vector<float> expected = Prefill(batch);
  ExpectWithinTwiceTheRounding(batch, expected);
  for (int pages : {1, 2, 3}) {  // of 16 KiB
    if (IsHopper() && pages == 1) continue;
    SimulateSharedBytes((16 * pages + 1) << 10);
    EXPECT_TRUE(SameBits(Prefill(batch), expected));
  }
}

TEST_P(DiffPrefillTest, AnyNumberOfMultiprocessorsGivesTheSameBits) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch(spec, {{10, 70}, {0, 0}, {100, 5}});
    SimulateMultiprocessors(4);
    const std::vector<float> expected = Prefill(batch);
    ExpectWithinTwiceTheRounding(batch, expected);
    SimulateMultiprocessors(1);
    EXPECT_TRUE(SameBits(Prefill(batch), expected));
  }
}

TEST_P(DiffPrefillTest, EveryScheduleAndEveryTimingOfCopiesGivesTheSameBits) {
  SimulateMultiprocessors(1);  // more pages a thread block than its ring has places
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch(spec, {{130, 7}, {60, 7}});
    const std::vector<float> expected = Prefill(batch);
    OnEverySchedule([&] { EXPECT_TRUE(SameBits(Prefill(batch), expected)); });
  }
}

TEST_P(DiffPrefillTest, HoweverAPromptIsCutAndWhoeverSharesTheBatchARowsBitsAreTheSame) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch whole(spec, {{0, 70}});
    const std::vector<float> expected = Prefill(whole);
    for (const std::vector<int>& cuts : {std::vector<int>{1, 63, 6}, {40, 30}}) {
      std::vector<float> out;
      int position = 0;
      for (int rows : cuts) {
        ImageBatch chunk(spec, {{position, rows}, {5, 2}});  // the slots behind this chunk are
                                                             // still NaNs
        std::vector<float> part = Prefill(chunk);
        part.resize(static_cast<size_t>(rows) * static_cast<size_t>(spec.out_width()));
        out.insert(out.end(), part.begin(), part.end());
        position += rows;
      }
      EXPECT_TRUE(SameBits(out, expected));
    }
  }
}

TEST_P(DiffPrefillTest, LambdaZeroEqualsPlainAttentionToTheBit) {
  DiffSpec spec = V2Spec(2, 1, 64);
  spec.lambda_kind = LambdaKind::kPerLayer;
  ImageBatch batch(spec, {{20, 30}});
  batch.lambda = 0;
  const std::vector<float> with_second_map = Prefill(batch);
  std::vector<float> q1;
  const std::ptrdiff_t width = spec.q_width();
  for (int row = 0; row < batch.num_rows(); ++row) {
    q1.insert(q1.end(), batch.q.begin() + row * width, batch.q.begin() + row * width + width / 2);
  }
  batch.q = q1;
  batch.spec.num_q2_heads = 0;
  batch.spec.lambda_kind = LambdaKind::kNone;
  EXPECT_TRUE(SameBits(Prefill(batch), with_second_map));
}

TEST_P(DiffPrefillTest, EqualMapsWithLambdaOneGiveExactlyZero) {
  for (DiffSpec spec : EveryForm()) {
    if (!spec.has_second_map()) continue;
    spec.lambda_kind = LambdaKind::kPerLayer;
    spec.sub_norm = SubNorm::kPlain;
    ImageBatch batch(spec, {{90, 20}});
    batch.lambda_rows.clear();
    batch.lambda = 1;
    const size_t width = static_cast<size_t>(spec.q_width());
    for (size_t i = 0; i < batch.q.size(); ++i) {
      if (i % width >= width / 2) batch.q[i] = batch.q[i - width / 2];
    }
    for (int slot = 0; slot < 110; ++slot) {
      for (int i = 0; i < spec.k_maps * spec.head_dim; ++i) {
        const int d = i % spec.head_dim;
        batch.SetK(0, 0, slot, i / spec.head_dim, d,
                   static_cast<float>((slot * 7 + d * 3) % 11) / 8 - 0.5f);
      }
    }
    for (float value : Prefill(batch)) ASSERT_EQ(value, 0.0f);
  }
}

// Each row's q picks one slot by a score far above all others, so the output is that slot's V,
// exactly: any wrong row, dim, page, swizzle or fragment shows as another number.
TEST_P(DiffPrefillTest, AQueryThatPicksOneSlotReadsItsVExactly) {
  constexpr int kPosition = 100, kRows = 40, kSlots = kPosition + kRows;
  std::vector<DiffSpec> specs = EveryForm();
  specs.push_back(PlainSpec(1, 1, 128));
  for (DiffSpec spec : specs) {
    spec.num_q1_heads = 2;
    spec.num_q2_heads = spec.has_second_map() ? 2 : 0;
    spec.sub_norm = SubNorm::kNone;
    if (spec.has_second_map()) spec.lambda_kind = LambdaKind::kPerLayer;
    ImageBatch batch(spec, {{kPosition, kRows}});
    batch.lambda_rows.clear();
    batch.lambda = 1;
    batch.out_scale = 1;
    const auto has_digit = [](int number, int d) {
      return d == number % 12 || d == 12 + number / 12;
    };
    for (int slot = 0; slot < kSlots; ++slot) {  // K holds one-hot digits of the slot's number, K2
                                                 // of the one 5 further
      for (int i = 0; i < spec.k_maps * spec.head_dim; ++i) {
        const int number = (slot + i / spec.head_dim * 5) % kSlots;
        const int d = i % spec.head_dim;
        batch.SetK(0, 0, slot, i / spec.head_dim, d, has_digit(number, d) ? 1.0f : 0.0f);
      }
      for (int d = 0; d < spec.v_dim; ++d)
        batch.SetV(0, 0, slot, d, static_cast<float>((slot * 31 + d * 17) % 128));
    }
    // Row r's head h of map m picks this slot; all are before the chunk.
    const auto pick = [](int row, int head, int map) {
      return (row * 13 + head * 29 + map * 41 + 6) % kPosition;
    };
    const int num_heads = spec.num_q1_heads + spec.num_q2_heads;
    for (int row = 0; row < kRows; ++row) {
      for (int head = 0; head < num_heads; ++head) {
        const int map = head / 2;
        const int number = (pick(row, head % 2, map) + (spec.k_maps == 2 ? map * 5 : 0)) % kSlots;
        for (int d = 0; d < spec.head_dim; ++d) {
          batch.q[static_cast<size_t>((row * num_heads + head) * spec.head_dim + d)] =
              has_digit(number, d) ? 4096.0f : 0.0f;
        }
      }
    }
    const std::vector<float> out = Prefill(batch);
    for (size_t i = 0; i < out.size(); ++i) {
      const int d = static_cast<int>(i) % spec.v_dim, head = static_cast<int>(i) / spec.v_dim % 2;
      const int row = static_cast<int>(i) / spec.out_width();
      int expected = (pick(row, head, 0) * 31 + d * 17) % 128;
      if (spec.has_second_map()) expected -= (pick(row, head, 1) * 31 + d * 17) % 128;
      ASSERT_EQ(out[i], static_cast<float>(expected))
          << testing::Describe(spec) << " " << row << " " << head << " " << d;
    }
  }
}

TEST_P(DiffPrefillTest, ANanInOneQueryStaysInItsRow) {
  ImageBatch batch(DiffLlamaSpec(1, 1, 64), {{10, 20}});
  const std::vector<float> clean = Prefill(batch);
  batch.q[5 * 128 + 64] = std::numeric_limits<float>::quiet_NaN();  // q2 of row 5
  const std::vector<float> out = Prefill(batch);
  for (size_t i = 0; i < out.size(); ++i) {
    const bool is_hit = i / 128 == 5;
    ASSERT_EQ(std::isnan(out[i]), is_hit) << i;
    if (is_hit) continue;
    ASSERT_EQ(out[i], clean[i]) << i;
  }
}

TEST_P(DiffPrefillTest, NansOfOneSequenceStayInIt) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch(spec, {{70, 10}, {5, 12}, {100, 4}});
    SimulateMultiprocessors(1);
    const std::vector<float> clean = Prefill(batch);
    for (int slot = 0; slot < 80; ++slot) {
      for (int d = 0; d < spec.v_dim; ++d)
        batch.SetV(0, 0, slot, d, std::numeric_limits<float>::quiet_NaN());
      for (int d = 0; d < spec.head_dim; ++d)
        batch.SetK(0, 0, slot, 0, d, std::numeric_limits<float>::quiet_NaN());
    }
    const std::vector<float> out = Prefill(batch);
    const size_t hit = 10 * static_cast<size_t>(spec.out_width());
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_TRUE(i < hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
  }
}

TEST_P(DiffPrefillTest, AnotherDevicesTilingIsRefused) {
  ImageBatch batch(DiffLlamaSpec(1, 1, 64), {{0, 3}});
  cuda::DiffAttentionArgs args;
  args.spec = batch.spec;
  args.batch.num_rows = 3;
  args.allow_bulk_copies = IsHopper();
  args.tiling = cuda::DiffPrefillTiling(batch.spec, IsHopper());
  args.tiling.rows_per_tile *= 2;
  EXPECT_NE(cuda::DiffPrefill(args, stream_->handle()), 0);
}

}  // namespace
}  // namespace diffserve
