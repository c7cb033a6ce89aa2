// SPDX-License-Identifier: Apache-2.0
// Attention through a window, for every backend and format: against the double-precision reference,
// and what must not change a bit. Pages before the window are forgotten and hold NaNs.
#include "kernels/attention/attention_window.h"

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

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<AttentionBackend> Backends() {
  std::vector<AttentionBackend> backends = testing::DiffAttentionBackends();
  for (AttentionBackend& backend : testing::CodePageBackends())
    backends.push_back(std::move(backend));
  return backends;
}

class AttentionWindowTest : public ::testing::TestWithParam<AttentionBackend> {
 protected:
  static AttentionBatch MakeBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                                  int window, std::vector<uint32_t> names = {}) {
    const KvFormat format = KvFormat::Of(spec, GetParam().page_sizes.front(), GetParam().pages,
                                         GetParam().arrangement);
    return {spec,
            shapes,
            {.format = format,
             .activations = GetParam().activations,
             .names = std::move(names),
             .window = window,
             .exact_q = HasCodes()}};
  }
  static bool HasCodes() {
    return KvFormat::Of(PlainSpec(1, 1, 64), 64, GetParam().pages).codec.scale_bits > 0;
  }
  static bool IsDevice() { return GetParam().arrangement == KvArrangement::kImage; }
  // NaNs in K and V of the slots before `end`.
  static void Poison(AttentionBatch& batch, size_t sequence, int end) {
    const std::vector<float> k = RowOf(batch.spec.head_dim, [](int) { return kNan; });
    const std::vector<float> v = RowOf(batch.spec.v_dim, [](int) { return kNan; });
    for (int slot = 0; slot < end; ++slot) {
      for (int group = 0; group < batch.spec.num_kv_groups; ++group) {
        for (int map = 0; map < batch.spec.k_maps; ++map)
          batch.SetKRow(sequence, group, slot, map, k);
        batch.SetVRow(sequence, group, slot, v);
      }
    }
  }
  // The slots that the batch's window hides hold NaNs, and their pages are forgotten.
  static std::vector<float> Attend(AttentionBatch& batch) {
    for (size_t i = 0; i < batch.memory.sequences().size(); ++i)
      Poison(batch, i, FirstSlotSeen(batch.memory.sequences()[i].position, batch.window));
    batch.ForgetPagesBehindWindow();
    return GetParam().run(batch);
  }
  static void ExpectLikeReference(AttentionBatch& batch) {
    SCOPED_TRACE("window " + std::to_string(batch.window));
    const std::vector<float> out = Attend(batch);
    // With codes, p times the scale of V is rounded.
    testing::ExpectLikeReference(batch, out, HasCodes() ? 3 : testing::kAttentionRoundingTimes,
                                 HasCodes() ? 2.5 : 1.5);
  }
  static std::vector<DiffSpec> EveryForm() {
    return {DiffLlamaSpec(3, 1, 64), GroupedSpec(1, 64), V2Spec(2, 1, 64), PlainSpec(2, 1, 64),
            DiffLlamaSpec(1, 1, 128)};
  }
};

// Windows shorter than a page, of its size, and no multiple of it; around a range of 256 and a
// split of 512; longer than the context.
TEST_P(AttentionWindowTest, EveryWindowMatchesTheReference) {
  const std::vector<SequenceShape> shapes = {{0, 1}, {70, 1}, {0, 21}, {250, 9}, {600, 1}, {61, 0}};
  for (int window : {1, 2, 5, 16, 17, 63, 64, 100, 255, 256, 257, 512, 513, 5000}) {
    AttentionBatch batch = MakeBatch(DiffLlamaSpec(2, 1, 64), shapes, window);
    ExpectLikeReference(batch);
  }
}

TEST_P(AttentionWindowTest, EveryFormMatchesTheReference) {
  const std::vector<SequenceShape> shapes = {{40, 1}, {90, 40}, {300, 2}, {1100, 1}};
  for (const DiffSpec& spec : EveryForm()) {
    for (int window : {3, 75, 500}) {
      AttentionBatch batch = MakeBatch(spec, shapes, window);
      ExpectLikeReference(batch);
    }
  }
}

TEST_P(AttentionWindowTest, QuantisedLogitsMatchTheReference) {
  if (!IsDevice() && GetParam().pages == DType::kInt4)
    GTEST_SKIP() << "there is no q whose codes and logits are both exact";
  for (const DiffSpec& spec : {DiffLlamaSpec(1, 1, 64), V2Spec(2, 1, 64)}) {
    for (int window : {5, 100, 300}) {
      for (LogitScale scale : kLogitScales) {
        AttentionBatch batch = MakeBatch(spec, {{63, 2}, {0, 37}, {300, 3}, {700, 1}}, window);
        batch.MakeLogitsExact();
        batch.logit_quant = {4, scale};
        ExpectLikeReference(batch);
      }
    }
  }
}

TEST_P(AttentionWindowTest, UnfilledWindowChangesNoBit) {
  for (const DiffSpec& spec : EveryForm()) {
    AttentionBatch batch = MakeBatch(spec, {{0, 20}, {300, 1}, {540, 2}}, 0);
    const std::vector<float> without = GetParam().run(batch);
    batch.window = std::numeric_limits<int>::max();  // as if there were none
    EXPECT_TRUE(SameBits(GetParam().run(batch), without));
    batch.window = 542;
    const std::vector<float> through = GetParam().run(batch);
    EXPECT_TRUE(SameBits(through, without));
    batch.window = 100000;
    EXPECT_TRUE(SameBits(GetParam().run(batch), through));
  }
}

TEST_P(AttentionWindowTest, WindowOfOneSlotGivesTheTokensOwnValueTimesOneMinusLambda) {
  DiffSpec spec = DiffLlamaSpec(1, 1, 64);
  spec.sub_norm = SubNorm::kNone;
  for (int position : {0, 1, 64, 301}) {
    AttentionBatch batch = MakeBatch(spec, {{position, 1}}, 1);
    if (HasCodes()) GTEST_SKIP() << "codes round the value";
    batch.lambda = 0.25f;
    batch.out_scale = 2;
    batch.SetVRow(0, 0, position, RowOf(spec.v_dim, [](int d) { return d % 64; }));
    const std::vector<float> out = Attend(batch);
    for (size_t d = 0; d < out.size(); ++d) ASSERT_EQ(out[d], 1.5f * static_cast<float>(d % 64));
  }
}

// With q = 0 every slot has the same weight, and 128 slots are whole periods of the values in V.
TEST_P(AttentionWindowTest, EqualScoresAverageTheWindowExactly) {
  DiffSpec spec = DiffLlamaSpec(2, 1, 64);
  spec.sub_norm = SubNorm::kNone;
  for (int position : {127, 300, 701}) {
    AttentionBatch batch = MakeBatch(spec, {{position, 1}}, 128);
    if (HasCodes()) GTEST_SKIP() << "codes round the values";
    batch.lambda = 0.5f;
    batch.out_scale = 1;
    std::fill(batch.q.begin(), batch.q.end(), 0.0f);
    for (int slot = 0; slot <= position; ++slot)
      batch.SetVRow(0, 0, slot, RowOf(spec.v_dim, [&](int d) { return (slot + d) % 8; }));
    for (float value : Attend(batch)) ASSERT_EQ(value, 1.75f) << position;
  }
}

TEST_P(AttentionWindowTest, RowIsBitwiseIndependentOfPromptChunks) {
  for (const DiffSpec& spec : EveryForm()) {
    for (int window : {20, 75, 280}) {
      AttentionBatch whole = MakeBatch(spec, {{230, 70}}, window);
      const std::vector<float> expected = Attend(whole);
      for (const std::vector<int>& cuts : {std::vector<int>{1, 63, 6}, {40, 30}, {17, 16, 37}}) {
        std::vector<float> out;
        int position = 230;
        for (int rows : cuts) {
          AttentionBatch chunk = MakeBatch(spec, {{position, rows}, {5, 2}}, window);
          std::vector<float> part = Attend(chunk);
          part.resize(static_cast<size_t>(rows) * static_cast<size_t>(spec.out_width()));
          out.insert(out.end(), part.begin(), part.end());
          position += rows;
        }
        EXPECT_TRUE(SameBits(out, expected)) << testing::Describe(spec) << ", window " << window;
      }
    }
  }
}

TEST_P(AttentionWindowTest, QuantisedLogitsAreIndependentOfPromptChunks) {
  for (LogitScale scale : kLogitScales) {
    AttentionBatch whole = MakeBatch(DiffLlamaSpec(3, 1, 64), {{500, 30}}, 290);
    whole.logit_quant = {4, scale};
    const std::vector<float> expected = Attend(whole);
    std::vector<float> out;
    for (const auto& [position, rows] : {std::pair{500, 1}, {501, 18}, {519, 11}}) {
      AttentionBatch chunk = MakeBatch(whole.spec, {{position, rows}, {5, 2}}, 290);
      chunk.logit_quant = whole.logit_quant;
      std::vector<float> part = Attend(chunk);
      part.resize(static_cast<size_t>(rows) * static_cast<size_t>(whole.spec.out_width()));
      out.insert(out.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(SameBits(out, expected)) << NameOf(scale);
  }
}

TEST_P(AttentionWindowTest, RowIsBitwiseIndependentOfBatch) {
  const std::vector<SequenceShape> shapes = {{30, 1}, {0, 25}, {64, 3}, {600, 1}};
  for (const DiffSpec& spec : EveryForm()) {
    AttentionBatch together = MakeBatch(spec, shapes, 45);
    const std::vector<float> all = Attend(together);
    size_t begin = 0;
    for (uint32_t i = 0; i < shapes.size(); ++i) {
      AttentionBatch alone = MakeBatch(spec, {shapes[i]}, 45, {i});
      const std::vector<float> out = Attend(alone);
      EXPECT_TRUE(SameBits(out, std::span(all).subspan(begin, out.size()))) << i;
      begin += out.size();
    }
  }
}

// Slots 0 to 194; rows from 215 on see none of them through a window of 20.
TEST_P(AttentionWindowTest, NansReachTheRowsThatSeeThemAndNoOtherRowsOnTheCpu) {
  constexpr int kPosition = 205, kRows = 20, kWindow = 20, kEnd = 195;
  for (const DiffSpec& spec : EveryForm()) {
    AttentionBatch batch = MakeBatch(spec, {{kPosition, kRows}, {kPosition + 10, 4}}, kWindow);
    const std::vector<float> clean = GetParam().run(batch);
    for (size_t sequence : {0u, 1u}) Poison(batch, sequence, kEnd);
    const std::vector<float> out = Attend(batch);
    const int width = spec.out_width();
    for (size_t i = 0; i < out.size(); ++i) {
      const int row = static_cast<int>(i) / width;
      const bool sees = row < kRows && FirstSlotSeen(kPosition + row, kWindow) < kEnd;
      if (sees) {
        ASSERT_TRUE(std::isnan(out[i])) << i;
      } else if (row >= kRows || !IsDevice()) {
        ASSERT_EQ(out[i], clean[i]) << testing::Describe(spec) << " " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionWindowTest, ::testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionWindowTest);

}  // namespace
}  // namespace diffserve
