// SPDX-License-Identifier: Apache-2.0
// Rotary embedding against its formula, and the positions of K and V in their pages: every backend,
// every format.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/base/tensor.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/rope_append_backends.h"

namespace diffserve {
namespace {

using testing::RandomFloats;
using testing::RopeAppendBackend;
using testing::RopeCase;
using testing::SequenceShape;
using testing::Tolerance;
using testing::WithinTolerance;

std::vector<double> InverseFrequencies(int head_dim) {
  std::vector<double> inv_freq;
  for (int i = 0; i < head_dim / 2; ++i) inv_freq.push_back(std::pow(10000.0, -2.0 * i / head_dim));
  return inv_freq;
}

DiffSpec SpecOf(int k_maps, int head_dim, int v_dim) {
  return {.num_q1_heads = 4,
          .num_q2_heads = 2,
          .num_kv_groups = 2,
          .k_maps = k_maps,
          .head_dim = head_dim,
          .v_dim = v_dim};
}

const std::vector<SequenceShape> kShapes = {{0, 1},  {15, 1},  {16, 2},  {63, 1}, {64, 1},
                                            {60, 9}, {0, 130}, {200, 0}, {300, 2}};

class RopeAppendTest : public ::testing::TestWithParam<RopeAppendBackend> {
 protected:
  // Without rotation there are no angles.
  RopeCase MakeCase(const DiffSpec& spec, RopeStyle style, const std::vector<SequenceShape>& shapes,
                    int page_size, bool has_kv = true) const {
    int num_tokens = 0;
    for (const SequenceShape& shape : shapes) num_tokens += shape.num_tokens;
    const int width = WidthOf(spec, has_kv);
    std::vector<float> qkv = RandomFloats(static_cast<size_t>(num_tokens * width), 1);
    if (GetParam().activations == DType::kBFloat16) {
      for (float& x : qkv) x = BFloat16ToFloat(FloatToBFloat16(x));
    }
    return {
        .spec = spec,
        .style = style,
        .rope = style == RopeStyle::kNone
                    ? RopeTable()
                    : RopeTable(InverseFrequencies(spec.head_dim), 512, attention_factor_),
        .memory = {KvFormat::Of(spec, page_size, GetParam().pages, GetParam().arrangement), shapes},
        .qkv = qkv,
        .has_kv = has_kv};
  }
  static int WidthOf(const DiffSpec& spec, bool has_kv) {
    return spec.q_width() + (has_kv ? spec.k_width() + spec.v_width() : 0);
  }

  // Compares q and every number of every page with the formula. Numbers that the batch does not
  // write are untouched, or 0 on backends that clear them.
  void ExpectByFormula(const RopeCase& rope) const {
    expected_.clear();
    for (const SequenceTokens& sequence : rope.memory.sequences()) {
      for (int row = 0; row < sequence.num_tokens; ++row) ExpectRow(rope, sequence, row);
      if (GetParam().clears_fresh_pages && rope.has_kv && sequence.num_tokens > 0)
        ExpectClear(rope, sequence);
    }
    const KvFormat& format = rope.memory.format();
    const Tolerance tolerance = ToleranceOf(testing::KernelOp::kRope, GetParam().pages);
    std::vector<float> numbers(rope.memory.bytes().size() * 8 /
                               static_cast<size_t>(format.codec.k_bits));
    const int64_t count = static_cast<int64_t>(numbers.size());
    CopyToFloat({.data = rope.memory.bytes().data(), .dtype = format.codec.dtype, .shape = {count}},
                0, count, numbers.data());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float value = numbers[i];
      const auto found = expected_.find(i);
      if (found == expected_.end()) {
        ASSERT_TRUE(std::isnan(value)) << "number " << i << " was written to";
      } else {
        ASSERT_TRUE(WithinTolerance(value, found->second, tolerance))
            << "number " << i << ": " << value << " " << found->second;
      }
    }
  }

  double Rotated(const RopeCase& rope, const float* head, int dim, int position) const {
    if (rope.style == RopeStyle::kNone) return double{head[dim]};
    const int half = rope.spec.head_dim / 2;
    const bool halves = rope.style == RopeStyle::kHalfSplit;
    const int pair = halves ? dim % half : dim / 2;
    const bool is_second = halves ? dim >= half : dim % 2 == 1;
    const double a = head[halves ? pair : 2 * pair];
    const double b = head[halves ? pair + half : 2 * pair + 1];
    const double angle = static_cast<float>(
        position * InverseFrequencies(rope.spec.head_dim)[static_cast<size_t>(pair)]);
    return attention_factor_ * (is_second ? b * std::cos(angle) + a * std::sin(angle)
                                          : a * std::cos(angle) - b * std::sin(angle));
  }

  // Calls place(number of the cache, map or -1 for V, group, dim) for all numbers of a token.
  template <typename Place>
  static void ForEachNumber(const RopeCase& rope, const SequenceTokens& sequence, int position,
                            Place place) {
    const KvFormat& format = rope.memory.format();
    const int slot = position % format.page_size;
    for (int group = 0; group < format.num_groups; ++group) {
      const int64_t page =
          (int64_t{sequence.pages[position / format.page_size]} * format.num_groups + group) *
          format.PageElements();
      for (int map = 0; map < format.k_maps; ++map) {
        for (int d = 0; d < format.head_dim; ++d)
          place(static_cast<size_t>(page + format.KOffset(map, d, slot)), map, group, d);
      }
      for (int d = 0; d < format.v_dim; ++d)
        place(static_cast<size_t>(page + format.VOffset(d, slot)), -1, group, d);
    }
  }

  void ExpectRow(const RopeCase& rope, const SequenceTokens& sequence, int row) const {
    const DiffSpec& spec = rope.spec;
    const int position = sequence.position + row;
    const int64_t batch_row = sequence.first_row + row;
    const float* x = rope.qkv.data() + batch_row * WidthOf(spec, rope.has_kv);
    const float* q = rope.q.data() + batch_row * spec.q_width();
    const Tolerance tolerance = ToleranceOf(testing::KernelOp::kRope, GetParam().activations);
    for (int i = 0; i < spec.q_width(); ++i) {
      const float* head = x + i / spec.head_dim * spec.head_dim;
      ASSERT_TRUE(
          WithinTolerance(q[i], Rotated(rope, head, i % spec.head_dim, position), tolerance))
          << i;
    }
    if (!rope.has_kv) return;
    const float* k = x + spec.q_width();
    const float* v = k + spec.k_width();
    ForEachNumber(rope, sequence, position, [&](size_t number, int map, int group, int d) {
      expected_[number] = map < 0 ? double{v[group * spec.v_dim + d]}
                                  : Rotated(rope,
                                            k + (map * spec.num_kv_groups + group) * spec.head_dim,
                                            d, position);
    });
  }

  // Slots after the last row of a page that the batch has begun.
  void ExpectClear(const RopeCase& rope, const SequenceTokens& sequence) const {
    const int page_size = rope.memory.format().page_size;
    const int end = sequence.position + sequence.num_tokens;
    const bool is_fresh = (end - 1) / page_size * page_size >= sequence.position;
    for (int position = end; is_fresh && position % page_size != 0; ++position) {
      ForEachNumber(rope, sequence, position,
                    [&](size_t number, int, int, int) { expected_[number] = 0; });
    }
  }

  double attention_factor_ = 1;
  mutable std::map<size_t, double> expected_;  // by number of the whole cache
};

TEST_P(RopeAppendTest, EveryStyleFollowsTheFormulaAndWritesKAndVToTheirSlots) {
  for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved, RopeStyle::kNone}) {
    for (int page_size : GetParam().page_sizes) {
      RopeCase rope = MakeCase(SpecOf(2, 16, 32), style, kShapes, page_size);
      GetParam().run(rope);
      ExpectByFormula(rope);
    }
  }
}

TEST_P(RopeAppendTest, EveryWidthFollowsTheFormula) {
  for (int head_dim : {2, 12, 16, 24, 48, 64, 96, 128}) {
    if (head_dim % GetParam().unit != 0) continue;
    for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved, RopeStyle::kNone}) {
      for (const DiffSpec& spec :
           {SpecOf(1, head_dim, head_dim), SpecOf(2, head_dim, 2 * head_dim)}) {
        RopeCase rope = MakeCase(spec, style, {{62, 5}}, GetParam().page_sizes.back());
        GetParam().run(rope);
        ExpectByFormula(rope);
      }
    }
  }
}

// A layer that attends to another's K and V. The page table is not read either.
TEST_P(RopeAppendTest, QueryWithoutKAndVTouchesNoPage) {
  for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved, RopeStyle::kNone}) {
    RopeCase rope = MakeCase(SpecOf(2, 16, 32), style, kShapes, GetParam().page_sizes.back(),
                             /*has_kv=*/false);
    for (size_t i = 0; i < kShapes.size(); ++i) rope.memory.ForgetPages(i, 1);
    GetParam().run(rope);
    ExpectByFormula(rope);
  }
}

TEST_P(RopeAppendTest, AttentionFactorScalesQAndKButNotV) {
  attention_factor_ = 1.25;
  RopeCase rope = MakeCase(SpecOf(2, 16, 32), RopeStyle::kHalfSplit, {{3, 20}},
                           GetParam().page_sizes.back());
  GetParam().run(rope);
  ExpectByFormula(rope);
}

TEST_P(RopeAppendTest, RowIsBitwiseIndependentOfBatch) {
  // Enough rows to wake the CPU's workers.
  const std::vector<SequenceShape> shapes = {{3, 130}, {15, 1}, {16, 40}};
  const DiffSpec spec = SpecOf(2, 16, 32);
  RopeCase together = MakeCase(spec, RopeStyle::kInterleaved, shapes, GetParam().page_sizes.back());
  GetParam().run(together);
  const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
  const size_t q_width = static_cast<size_t>(spec.q_width());
  for (const SequenceTokens& sequence : together.memory.sequences()) {
    for (int row = 0; row < sequence.num_tokens; row += 13) {
      RopeCase alone = MakeCase(spec, RopeStyle::kInterleaved, {{sequence.position + row, 1}},
                                GetParam().page_sizes.back());
      const size_t first = static_cast<size_t>(sequence.first_row + row);
      std::copy_n(together.qkv.begin() + static_cast<std::ptrdiff_t>(first * width), width,
                  alone.qkv.begin());
      GetParam().run(alone);
      EXPECT_TRUE(
          testing::SameBits(alone.q, std::span(together.q).subspan(first * q_width, q_width)))
          << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RopeAppendTest,
                         ::testing::ValuesIn(testing::RopeAppendBackends()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RopeAppendTest);

TEST(RopeTableTest, AnglesAreRoundedToFloatAndNoMoreIsLost) {
  const std::vector<double> inv_freq = {1.0, 0.1};
  const RopeTable table(inv_freq, 131072, 1.0);
  const RopeAngles angles = table.angles();
  EXPECT_EQ(angles.cos[2 * 131071], static_cast<float>(std::cos(131071.0)));
  EXPECT_EQ(angles.sin[2 * 131071 + 1],
            static_cast<float>(std::sin(double{static_cast<float>(131071.0 * 0.1)})));
}

}  // namespace
}  // namespace diffserve
