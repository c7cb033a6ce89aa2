// SPDX-License-Identifier: Apache-2.0
// Differential attention, for every backend and format: against the double-precision reference, in
// exact cases, and what must not change a bit.
#include "kernels/attention/diff_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/testing/kernels/attention_backends.h"
#include "tests/testing/kernels/attention_rounding.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

using testing::AttentionBackend;
using testing::AttentionBatch;
using testing::DiffLlamaSpec;
using testing::GroupedSpec;
using testing::PlainSpec;
using testing::RowOf;
using testing::SameBits;
using testing::SequenceShape;
using testing::V2Spec;

constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

class DiffAttentionTest : public ::testing::TestWithParam<AttentionBackend> {
 protected:
  AttentionBatch MakeBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                           uint32_t page_seed = 1, std::vector<uint32_t> names = {},
                           int page_size = 0) const {
    if (page_size == 0) page_size = GetParam().page_sizes.front();
    return {spec,
            shapes,
            {.format = KvFormat::Of(spec, page_size, GetParam().pages, GetParam().arrangement),
             .activations = GetParam().activations,
             .page_seed = page_seed,
             .names = std::move(names)}};
  }
  static std::vector<float> Attend(AttentionBatch& batch) { return GetParam().run(batch); }
  void ExpectLikeReference(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                           int page_size = 0) const {
    AttentionBatch batch = MakeBatch(spec, shapes, 1, {}, page_size);
    testing::ExpectLikeReference(batch, Attend(batch));
  }
  // One spec for each way in which kernels share rows and maps.
  static std::vector<DiffSpec> EveryForm() {
    return {DiffLlamaSpec(3, 1, 64), GroupedSpec(1, 64), V2Spec(2, 1, 64), PlainSpec(2, 1, 64),
            DiffLlamaSpec(1, 1, 128)};
  }
};

TEST_P(DiffAttentionTest, EveryFamilyMatchesTheReference) {
  const std::vector<SequenceShape> shapes = {{0, 1}, {70, 1}, {0, 37}, {61, 9}, {15, 1}, {100, 0}};
  ExpectLikeReference(DiffLlamaSpec(4, 2, 64), shapes);
  ExpectLikeReference(PlainSpec(4, 2, 64), shapes);
  ExpectLikeReference(V2Spec(4, 2, 64), shapes);
  ExpectLikeReference(GroupedSpec(2, 64), shapes);
}

TEST_P(DiffAttentionTest, EveryHeadWidthMatchesTheReference) {
  for (int head_dim : GetParam().head_dims) {
    const std::vector<SequenceShape> shapes = {{40, 1}, {0, 21}};
    ExpectLikeReference(DiffLlamaSpec(2, 1, head_dim), shapes);
    ExpectLikeReference(V2Spec(2, 1, head_dim), shapes);
    ExpectLikeReference(PlainSpec(2, 2, head_dim), shapes);
    if (head_dim != 64 && head_dim != 128) continue;
    DiffSpec narrow_v = DiffLlamaSpec(2, 1, head_dim);
    narrow_v.v_dim = head_dim;
    ExpectLikeReference(narrow_v, {{90, 3}});
    DiffSpec wide_v = V2Spec(2, 1, head_dim);
    wide_v.v_dim = 2 * head_dim;
    ExpectLikeReference(wide_v, {{90, 3}});
  }
}

TEST_P(DiffAttentionTest, ValueWidthBelowAVectorMatchesTheReference) {
  if (!GetParam().takes_every_v_dim) GTEST_SKIP() << "its widths are multiples of 16";
  for (int v_dim : {1, 7, 9, 19, 33}) {
    DiffSpec spec = DiffLlamaSpec(2, 2, 16);
    spec.v_dim = v_dim;
    ExpectLikeReference(spec, {{40, 1}, {0, 21}});
  }
}

TEST_P(DiffAttentionTest, EveryRatioOfQueryHeadsToGroupsMatchesTheReference) {
  for (int ratio : {1, 3, 8, 9, 17}) {
    ExpectLikeReference(V2Spec(2 * ratio, 2, 64), {{33, 1}, {3, 5}});
    ExpectLikeReference(PlainSpec(ratio, 1, 64), {{33, 1}, {3, 5}});
  }
}

TEST_P(DiffAttentionTest, EveryPageSizeAndLengthMatchesTheReference) {
  std::vector<SequenceShape> shapes = {{0, 66}, {59, 6}};
  for (int length : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 513})
    shapes.push_back({length - 1, 1});
  for (int page_size : GetParam().page_sizes)
    ExpectLikeReference(DiffLlamaSpec(1, 1, 64), shapes, page_size);
}

TEST_P(DiffAttentionTest, AnyLambdaAndScaleMatchTheReference) {
  for (float lambda : {-0.7f, 0.0f, 0.2f, 1.0f, 1.8f}) {
    DiffSpec spec = DiffLlamaSpec(2, 1, 64);
    spec.sub_norm = lambda < 0.5f ? SubNorm::kNone : SubNorm::kAffine;
    AttentionBatch batch = MakeBatch(spec, {{77, 1}, {0, 9}});
    batch.lambda = lambda;
    batch.out_scale = 1.25f;
    testing::ExpectLikeReference(batch, Attend(batch));
  }
}

TEST_P(DiffAttentionTest, QuantisedLogitsMatchTheReference) {
  // Beyond a tile, within it, at its end; over several ranges; a chunk across both.
  const std::vector<SequenceShape> shapes = {{0, 1},   {63, 1}, {64, 2},  {255, 2},
                                             {300, 1}, {0, 70}, {590, 3}, {900, 1}};
  for (const DiffSpec& spec :
       {DiffLlamaSpec(1, 1, 16), GroupedSpec(1, 16), V2Spec(4, 2, 16), PlainSpec(2, 1, 64)}) {
    AttentionBatch batch = MakeBatch(spec, shapes);
    batch.MakeLogitsExact();
    for (const LogitQuant& quant : testing::LogitQuants()) {
      batch.logit_quant = quant;
      testing::ExpectLikeReference(batch, Attend(batch));
    }
  }
}

TEST_P(DiffAttentionTest, QuantisedLogitsOfWideHeadsMatchTheReference) {
  for (const DiffSpec& spec :
       {DiffLlamaSpec(1, 1, 64), V2Spec(2, 1, 64), DiffLlamaSpec(1, 1, 128)}) {
    AttentionBatch batch = MakeBatch(spec, {{63, 2}, {0, 37}, {300, 1}});
    batch.MakeLogitsExact();
    for (LogitScale scale : kLogitScales) {
      batch.logit_quant = {4, scale};
      testing::ExpectLikeReference(batch, Attend(batch));
    }
  }
}

TEST_P(DiffAttentionTest, QuantisedLogitsOfAZeroQueryAverageTheValues) {
  for (const LogitQuant& quant : testing::LogitQuants()) {
    DiffSpec spec = DiffLlamaSpec(2, 1, 64);
    spec.sub_norm = SubNorm::kNone;
    AttentionBatch batch = MakeBatch(spec, {{127, 1}});
    batch.logit_quant = quant;
    batch.lambda = 0.5f;
    batch.out_scale = 1;
    std::fill(batch.q.begin(), batch.q.end(), 0.0f);
    for (int slot = 0; slot < 128; ++slot) {
      batch.SetVRow(0, 0, slot, RowOf(spec.v_dim, [&](int d) { return (slot + d) % 8; }));
    }
    for (float value : Attend(batch)) ASSERT_EQ(value, 1.75f);
  }
}

TEST_P(DiffAttentionTest, EmptyBatchIsSkipped) {
  AttentionBatch batch = MakeBatch(DiffLlamaSpec(2, 1, 64), {{0, 0}});
  EXPECT_TRUE(Attend(batch).empty());
}

TEST_P(DiffAttentionTest, LambdaZeroIsBitwiseEqualToPlainAttention) {
  DiffSpec spec = V2Spec(4, 2, 64);
  spec.lambda_kind = LambdaKind::kPerLayer;
  AttentionBatch batch = MakeBatch(spec, {{20, 9}, {530, 1}});
  batch.lambda = 0;
  const std::vector<float> with_second_map = Attend(batch);
  batch.DropSecondMap();
  EXPECT_TRUE(SameBits(Attend(batch), with_second_map));
}

TEST_P(DiffAttentionTest, EqualMapsWithLambdaOneGiveExactlyZero) {
  for (int k_maps : {1, 2}) {
    DiffSpec spec = DiffLlamaSpec(3, 1, 64);
    spec.k_maps = k_maps;
    AttentionBatch batch = MakeBatch(spec, {{90, 5}, {530, 1}});
    batch.lambda = 1;
    const size_t width = static_cast<size_t>(spec.q_width());
    for (size_t i = 0; i < batch.q.size(); ++i) {
      if (i % width >= width / 2) batch.q[i] = batch.q[i - width / 2];
    }
    for (size_t sequence = 0; sequence < 2 && k_maps == 2; ++sequence) {
      const SequenceTokens& rows = batch.memory.sequences()[sequence];
      for (int slot = 0; slot < rows.position + rows.num_tokens; ++slot) {
        const std::vector<float> k = RowOf(
            64, [&](int d) { return static_cast<float>((slot * 7 + d * 3) % 11) / 8 - 0.5f; });
        for (int map : {0, 1}) batch.SetKRow(sequence, 0, slot, map, k);
      }
    }
    for (float value : Attend(batch)) ASSERT_EQ(value, 0.0f);
  }
}

TEST_P(DiffAttentionTest, EqualScoresAverageIntegerValuesExactly) {
  // With q = 0 every slot has the same weight: o = (1 - lambda) * mean.
  for (int length : {128, 1024}) {
    DiffSpec spec = DiffLlamaSpec(2, 1, 64);
    spec.sub_norm = SubNorm::kNone;
    AttentionBatch batch = MakeBatch(spec, {{length - 1, 1}});
    batch.lambda = 0.5f;
    batch.out_scale = 1;
    std::fill(batch.q.begin(), batch.q.end(), 0.0f);
    for (int slot = 0; slot < length; ++slot) {
      batch.SetVRow(0, 0, slot, RowOf(spec.v_dim, [&](int d) { return (slot + d) % 8; }));
    }
    for (float value : Attend(batch)) ASSERT_EQ(value, 1.75f);
  }
}

TEST_P(DiffAttentionTest, FirstTokenGivesItsOwnValueTimesOneMinusLambda) {
  DiffSpec spec = DiffLlamaSpec(1, 1, 64);
  spec.sub_norm = SubNorm::kNone;
  AttentionBatch batch = MakeBatch(spec, {{0, 1}});
  batch.lambda = 0.25f;
  batch.out_scale = 2;
  batch.SetVRow(0, 0, 0, RowOf(spec.v_dim, [](int d) { return d % 64; }));
  const std::vector<float> out = Attend(batch);
  for (size_t d = 0; d < out.size(); ++d) ASSERT_EQ(out[d], 1.5f * static_cast<float>(d % 64));
}

// Each row's q picks one slot by a score far above all others, so the output is exactly that slot's
// V. Any wrong row, dim, page, lane or fragment gives another number.
TEST_P(DiffAttentionTest, QueryThatPicksOneSlotReadsItsVExactly) {
  constexpr int kPosition = 100, kRows = 40, kSlots = kPosition + kRows;
  for (DiffSpec spec : EveryForm()) {
    spec.num_q1_heads = 2;
    spec.num_q2_heads = spec.has_second_map() ? 2 : 0;
    spec.sub_norm = SubNorm::kNone;
    if (spec.has_second_map()) spec.lambda_kind = LambdaKind::kPerLayer;
    AttentionBatch batch = MakeBatch(spec, {{kPosition, kRows}});
    batch.lambda_rows.clear();
    batch.lambda = 1;
    batch.out_scale = 1;
    const auto has_digit = [](int number, int d) {
      return d == number % 12 || d == 12 + number / 12;
    };
    // K holds one-hot digits of the slot's number; K2 of the number plus 5.
    for (int slot = 0; slot < kSlots; ++slot) {
      for (int map = 0; map < spec.k_maps; ++map) {
        const int number = (slot + map * 5) % kSlots;
        batch.SetKRow(0, 0, slot, map,
                      RowOf(spec.head_dim, [&](int d) { return has_digit(number, d); }));
      }
      batch.SetVRow(0, 0, slot,
                    RowOf(spec.v_dim, [&](int d) { return (slot * 31 + d * 17) % 128; }));
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
    const std::vector<float> out = Attend(batch);
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

TEST_P(DiffAttentionTest, VeryUnequalScoresStayFiniteAndMatchTheReference) {
  AttentionBatch batch = MakeBatch(DiffLlamaSpec(2, 1, 64), {{150, 1}, {0, 40}});
  for (float& value : batch.q) value *= 256.0f;  // most p are exactly 0
  // Scores around 1000 have rounding errors of 1e-4, which exp passes on.
  const double allowed = GetParam().activations == DType::kFloat32 ? 5e-3 : 0.02;
  EXPECT_LE(testing::ErrorsOf(Attend(batch), batch.Reference()).max, allowed);
}

TEST_P(DiffAttentionTest, NonFiniteQueryYieldsNanOnlyInItsHead) {
  for (float poison : {kQuietNan, std::numeric_limits<float>::infinity()}) {
    const DiffSpec spec = DiffLlamaSpec(2, 1, 64);
    AttentionBatch batch = MakeBatch(spec, {{10, 9}, {100, 1}});
    const std::vector<float> clean = Attend(batch);
    const size_t row = 5;
    batch.q[row * static_cast<size_t>(spec.q_width()) + 64] = poison;  // q1 of head 1
    const std::vector<float> out = Attend(batch);
    const size_t hit = row * static_cast<size_t>(spec.out_width()) + 128;
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_hit = i >= hit && i < hit + 128;
      ASSERT_EQ(std::isnan(out[i]), is_hit) << i;
      if (is_hit) continue;
      ASSERT_EQ(out[i], clean[i]) << i;
    }
  }
}

TEST_P(DiffAttentionTest, NonFiniteQueryYieldsNanOnlyInItsHeadIfLogitsAreQuantised) {
  for (const LogitQuant& quant : testing::LogitQuants()) {
    for (float poison : {kQuietNan, std::numeric_limits<float>::infinity()}) {
      const DiffSpec spec = DiffLlamaSpec(2, 1, 64);
      AttentionBatch batch = MakeBatch(spec, {{290, 3}});
      batch.logit_quant = quant;
      const std::vector<float> clean = Attend(batch);
      batch.q[static_cast<size_t>(spec.q_width()) + 64] = poison;  // q1 of head 1 of row 1
      const std::vector<float> out = Attend(batch);
      const size_t hit = static_cast<size_t>(spec.out_width()) + 128;
      for (size_t i = 0; i < out.size(); ++i) {
        const bool is_hit = i >= hit && i < hit + 128;
        ASSERT_TRUE(is_hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
      }
    }
  }
}

TEST_P(DiffAttentionTest, NansInKAndVReachOnlyTheRowsOfTheirSequenceThatAttendToThem) {
  for (const DiffSpec& spec : EveryForm()) {
    AttentionBatch batch = MakeBatch(spec, {{70, 10}, {5, 12}, {100, 4}});
    const std::vector<float> clean = Attend(batch);
    batch.SetVRow(0, 0, 3, RowOf(spec.v_dim, [](int) { return kQuietNan; }));
    batch.SetK(0, 0, 7, spec.k_maps - 1, 5, kQuietNan);
    const std::vector<float> out = Attend(batch);
    const size_t hit = 10 * static_cast<size_t>(spec.out_width());
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_TRUE(i < hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
  }
}

TEST_P(DiffAttentionTest, PlacementOfPagesChangesNoBit) {
  const std::vector<SequenceShape> shapes = {{100, 3}, {530, 1}};
  AttentionBatch one = MakeBatch(GroupedSpec(1, 64), shapes, 1);
  AttentionBatch other = MakeBatch(GroupedSpec(1, 64), shapes, 99);
  EXPECT_TRUE(SameBits(Attend(other), Attend(one)));
}

TEST_P(DiffAttentionTest, RowIsBitwiseIndependentOfBatch) {
  const std::vector<SequenceShape> shapes = {{30, 1}, {0, 25}, {64, 3}, {600, 1}};
  for (const DiffSpec& spec : EveryForm()) {
    AttentionBatch together = MakeBatch(spec, shapes);
    const std::vector<float> all = Attend(together);
    size_t begin = 0;
    for (uint32_t i = 0; i < shapes.size(); ++i) {
      AttentionBatch alone = MakeBatch(spec, {shapes[i]}, 5, {i});
      const std::vector<float> out = Attend(alone);
      EXPECT_TRUE(SameBits(out, std::span(all).subspan(begin, out.size()))) << i;
      begin += out.size();
    }
  }
}

TEST_P(DiffAttentionTest, QuantisedLogitsAreIndependentOfPromptChunks) {
  for (const LogitQuant& quant : testing::LogitQuants()) {
    AttentionBatch whole = MakeBatch(DiffLlamaSpec(3, 1, 64), {{250, 70}});
    whole.logit_quant = quant;
    const std::vector<float> expected = Attend(whole);
    std::vector<float> out;
    for (const auto& [position, rows] : {std::pair{250, 1}, {251, 40}, {291, 29}}) {
      AttentionBatch chunk = MakeBatch(whole.spec, {{position, rows}, {5, 2}});
      chunk.logit_quant = quant;
      std::vector<float> part = Attend(chunk);
      part.resize(static_cast<size_t>(rows) * static_cast<size_t>(whole.spec.out_width()));
      out.insert(out.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(SameBits(out, expected));
  }
}

TEST_P(DiffAttentionTest, RowIsBitwiseIndependentOfPromptChunks) {
  for (const DiffSpec& spec : EveryForm()) {
    AttentionBatch whole = MakeBatch(spec, {{0, 70}});
    const std::vector<float> expected = Attend(whole);
    for (const std::vector<int>& cuts : {std::vector<int>{1, 63, 6}, {40, 30}, {17, 16, 37}}) {
      std::vector<float> out;
      int position = 0;
      for (int rows : cuts) {  // the slots after a chunk are still NaNs
        AttentionBatch chunk = MakeBatch(spec, {{position, rows}, {5, 2}});
        std::vector<float> part = Attend(chunk);
        part.resize(static_cast<size_t>(rows) * static_cast<size_t>(spec.out_width()));
        out.insert(out.end(), part.begin(), part.end());
        position += rows;
      }
      EXPECT_TRUE(SameBits(out, expected));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DiffAttentionTest,
                         ::testing::ValuesIn(testing::DiffAttentionBackends()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DiffAttentionTest);

}  // namespace
}  // namespace diffserve
