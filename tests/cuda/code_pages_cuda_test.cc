// SPDX-License-Identifier: Apache-2.0
// Pages of codes on the device: writes against the definition, and attention over them against the
// double-precision reference, which reads the same codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "tests/cuda/attention_on_device.h"
#include "tests/testing/kernels/attention_rounding.h"
#include "tests/testing/kernels/attention_specs.h"
#include "tests/testing/kernels/rope_append_backends.h"

namespace diffserve {
namespace {

using testing::DiffLlamaSpec;
using testing::ImageBatch;
using testing::SameBits;
using testing::SequenceShape;
using testing::V2Spec;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr DType kPagesOfCodes[] = {DType::kInt8, DType::kInt8KInt4V, DType::kInt4, DType::kFp8E4M3};

struct Kernel {
  const char* name;
  std::vector<float> (*run)(const testing::AttentionBatch& batch, bool bulk_copies);
  bool bulk_copies;
  double error_times;  // of the rounded reference's largest error
};
// The last rounds also each number of K and V, times its scale.
constexpr Kernel kKernels[] = {{"Decode", testing::Decode, false, 3},
                               {"DecodeInBulk", testing::Decode, true, 3},
                               {"Prefill", testing::Prefill, false, 3},
                               {"PrefillInBulk", testing::Prefill, true, 4}};

class CodePagesOnDeviceTest : public testing::OnDeviceTest,
                              public ::testing::WithParamInterface<std::tuple<DType, Kernel>> {
 protected:
  static ImageBatch MakeBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                              std::vector<uint32_t> names = {}) {
    return {spec, shapes, 1, 1, std::move(names), std::get<DType>(GetParam())};
  }
  static std::vector<float> Attend(const ImageBatch& batch) {
    const Kernel& kernel = std::get<Kernel>(GetParam());
    return kernel.run(batch, kernel.bulk_copies);
  }
  // p times the scale of V is rounded here, even where p itself is exact.
  static void ExpectLikeReference(ImageBatch& batch) {
    testing::ExpectLikeReference(batch, Attend(batch), std::get<Kernel>(GetParam()).error_times,
                                 2.5);
  }
  static std::vector<DiffSpec> EveryForm() {
    return {DiffLlamaSpec(3, 1, 16), DiffLlamaSpec(2, 1, 48), V2Spec(2, 1, 64),
            testing::PlainSpec(2, 1, 128), testing::GroupedSpec(1, 64)};
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, CodePagesOnDeviceTest,
                         ::testing::Combine(::testing::ValuesIn(kPagesOfCodes),
                                            ::testing::ValuesIn(kKernels)),
                         [](const auto& info) {
                           return std::string(NameOf(std::get<DType>(info.param))) + "_" +
                                  std::get<Kernel>(info.param).name;
                         });

TEST_P(CodePagesOnDeviceTest, EveryHeadShapeMatchesTheReference) {
  for (int head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 256}) {
    for (DiffSpec spec : {DiffLlamaSpec(2, 1, head_dim), V2Spec(2, 1, head_dim)}) {
      ImageBatch batch = MakeBatch(spec, {{40, 1}, {0, 21}, {530, 2}});
      ExpectLikeReference(batch);
      if (head_dim != 64 && head_dim != 128) continue;
      std::swap(spec.k_maps, spec.v_dim);  // the other two pairs of K maps and width of V
      spec.k_maps = spec.v_dim == 2 ? 1 : 2;
      spec.v_dim = spec.k_maps == 1 ? 2 * head_dim : head_dim;
      ImageBatch other = MakeBatch(spec, {{90, 3}});
      ExpectLikeReference(other);
    }
  }
}

TEST_P(CodePagesOnDeviceTest, EveryFamilyAndLengthMatchesTheReference) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch = MakeBatch(spec, {{0, 1}, {15, 1}, {16, 1}, {63, 2}, {61, 9}, {600, 1}});
    ExpectLikeReference(batch);
  }
}

TEST_P(CodePagesOnDeviceTest, QuantisedLogitsMatchTheReference) {
  for (const DiffSpec& spec : {DiffLlamaSpec(1, 1, 16), V2Spec(2, 1, 64)}) {
    ImageBatch batch = MakeBatch(spec, {{63, 2}, {0, 37}, {600, 1}});
    batch.MakeLogitsExact();
    for (const LogitQuant& quant : testing::LogitQuants()) {
      batch.logit_quant = quant;
      ExpectLikeReference(batch);
    }
  }
}

TEST_P(CodePagesOnDeviceTest, RowIsBitwiseIndependentOfBatchAndChunks) {
  for (const DiffSpec& spec : EveryForm()) {
    for (const LogitQuant& quant : {LogitQuant{}, LogitQuant{4, LogitScale::kRow}}) {
      ImageBatch together = MakeBatch(spec, {{30, 1}, {500, 20}});
      together.logit_quant = quant;
      const std::vector<float> all = Attend(together);
      const size_t width = static_cast<size_t>(spec.out_width());
      for (int row : {0, 5, 11, 12, 19}) {
        ImageBatch alone = MakeBatch(spec, {{500 + row, 1}}, {1});
        alone.logit_quant = quant;
        EXPECT_TRUE(SameBits(Attend(alone),
                             std::span(all).subspan(static_cast<size_t>(1 + row) * width, width)))
            << testing::Describe(spec) << " " << row;
      }
    }
  }
}

TEST_P(CodePagesOnDeviceTest, EveryScheduleAndEveryTimingOfCopiesGivesTheSameBits) {
  ImageBatch batch = MakeBatch(DiffLlamaSpec(2, 1, 64), {{100, 3}, {530, 1}});
  const std::vector<float> expected = Attend(batch);
  OnEverySchedule([&] { EXPECT_TRUE(SameBits(Attend(batch), expected)); });
}

TEST_P(CodePagesOnDeviceTest, NansReachOnlyTheRowsOfTheirSequenceThatAttendToThem) {
  for (const DiffSpec& spec : EveryForm()) {
    ImageBatch batch = MakeBatch(spec, {{70, 10}, {5, 12}, {100, 4}});
    const std::vector<float> clean = Attend(batch);
    batch.SetVRow(0, 0, 3, testing::RowOf(spec.v_dim, [](int) { return kNan; }));
    batch.SetK(0, 0, 7, spec.k_maps - 1, 5, kNan);
    const std::vector<float> out = Attend(batch);
    const size_t hit = 10 * static_cast<size_t>(spec.out_width());
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_TRUE(i < hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
  }
}

TEST_P(CodePagesOnDeviceTest, NonFiniteQueryYieldsNanOnlyInItsHead) {
  for (float poison : {kNan, std::numeric_limits<float>::infinity()}) {
    const DiffSpec spec = DiffLlamaSpec(2, 1, 64);
    ImageBatch batch = MakeBatch(spec, {{10, 9}, {100, 1}});
    const std::vector<float> clean = Attend(batch);
    batch.q[5 * static_cast<size_t>(spec.q_width()) + 64] = poison;  // q1 of head 1
    const std::vector<float> out = Attend(batch);
    const size_t hit = 5 * static_cast<size_t>(spec.out_width()) + 128;
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_hit = i >= hit && i < hit + 128;
      ASSERT_TRUE(is_hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
    }
  }
}

// Sums as large as 8-bit codes allow: one slot's is the largest, or all are equal.
TEST_P(CodePagesOnDeviceTest, ExtremeCodesDoNotOverflow) {
  const DiffSpec spec = testing::PlainSpec(7, 1, 128);
  for (bool weighs_all_equally : {false, true}) {
    ImageBatch batch = MakeBatch(spec, {{300, 1}});
    batch.out_scale = 1;
    for (float& value : batch.q) value = -2;
    std::vector<float> v;
    for (int d = 0; d < spec.v_dim; ++d) v.push_back(d % 2 == 0 ? 1.0f : -1.0f);
    for (int slot = 0; slot <= 300; ++slot) {
      const float k = weighs_all_equally || slot % 2 == 0 ? -0.25f : 0.25f;
      batch.SetKRow(0, 0, slot, 0, std::vector<float>(v.size(), k));
      batch.SetVRow(0, 0, slot, v);
    }
    const std::vector<float> out = Attend(batch);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], i % 2 == 0 ? 1 : -1, 0.02);
  }
}

// Two slots; q prefers the first by a dim that is less than half a code, half a code, or more.
TEST_P(CodePagesOnDeviceTest, QueryIsRoundedToCodesForKeysOfEightBits) {
  DiffSpec spec = testing::PlainSpec(1, 1, 64);
  spec.sub_norm = SubNorm::kNone;
  for (const auto& [number, expected] :
       {std::pair{0.375f, 0.0f}, {0.5f, 0.0f}, {0.625f, 1.0f}, {-0.625f, -1.0f}}) {
    ImageBatch batch = MakeBatch(spec, {{1, 1}});
    if (!batch.memory.format().codec.has_int8_k()) GTEST_SKIP() << "q is bfloat16 there";
    batch.out_scale = 1;
    std::fill(batch.q.begin(), batch.q.end(), 0.0f);
    batch.q[0] = Int8Codec::kMaxCode;
    batch.q[1] = number;
    for (int slot = 0; slot < 2; ++slot) {
      std::vector<float> k(64);
      k[1] = slot == 0 ? 127.0f : -127.0f;
      batch.SetKRow(0, 0, slot, 0, k);
      batch.SetVRow(0, 0, slot, std::vector<float>(64, slot == 0 ? 1.0f : -1.0f));
    }
    for (float value : Attend(batch)) ASSERT_NEAR(value, expected, 1e-3) << number;
  }
}

using Fp8PagesOnDeviceTest = testing::OnDeviceTest;

// Every code except the NaNs, which no page contains.
TEST_F(Fp8PagesOnDeviceTest, EveryCodeDecodesToItsNumber) {
  DiffSpec spec = testing::PlainSpec(1, 1, 128);
  spec.sub_norm = SubNorm::kNone;
  const std::vector<SequenceShape> shapes = {{0, 1}, {0, 1}};  // a single V is attended to
  ImageBatch batch(spec, shapes, 1, 1, {}, DType::kFp8E4M3);
  batch.out_scale = 1;
  std::vector<float> expected;
  for (uint32_t sequence = 0; sequence < 2; ++sequence) {
    std::vector<float> v;
    for (uint32_t code = 0; code < 0x7f; ++code)
      v.push_back(Fp8E4M3ToFloat(static_cast<uint8_t>(code | sequence << 7)));
    v.push_back(0);
    batch.SetVRow(sequence, 0, 0, v);
    expected.insert(expected.end(), v.begin(), v.end());
  }
  for (const Kernel& kernel : kKernels)
    EXPECT_EQ(kernel.run(batch, kernel.bulk_copies), expected) << kernel.name;
}

class CodeAppendOnDeviceTest : public testing::OnDeviceTest,
                               public ::testing::WithParamInterface<DType> {
 protected:
  // `frequency` 0: nothing is rotated.
  static testing::RopeCase Case(const DiffSpec& spec, RopeStyle style, double frequency,
                                DType pages = GetParam()) {
    const std::vector<double> frequencies(static_cast<size_t>(spec.head_dim / 2), frequency);
    const std::vector<SequenceShape> shapes = {{0, 3}, {62, 5}, {200, 1}};
    const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
    std::vector<float> qkv = testing::RandomFloats(9 * width, 3, -4, 4);
    for (float& value : qkv) value = BFloat16ToFloat(FloatToBFloat16(value));
    return {.spec = spec,
            .style = style,
            .rope = RopeTable(frequencies, 512, 1.0),
            .memory = {cuda::ImageFormat(spec, pages), shapes},
            .qkv = qkv};
  }
  static void Append(testing::RopeCase& rope) { testing::RopeAppendBackends().front().run(rope); }

  // Every row of the batch by the definition.
  static void AppendByDefinition(testing::RopeCase& rope) {
    const DiffSpec& spec = rope.spec;
    const float* x = rope.qkv.data();
    const auto take = [&](int count) {
      const std::span<const float> numbers(x, static_cast<size_t>(count));
      x += count;
      return numbers;
    };
    ForEachRow(rope, [&](const auto& page, int slot) {
      take(spec.q_width());
      for (int map = 0; map < spec.k_maps; ++map) {
        for (int group = 0; group < spec.num_kv_groups; ++group)
          SetK(rope.memory.format(), page(group), map, slot, take(spec.head_dim));
      }
      for (int group = 0; group < spec.num_kv_groups; ++group)
        SetV(rope.memory.format(), page(group), slot, take(spec.v_dim));
    });
  }

  template <typename Visit>  // (page of a group, slot in it)
  static void ForEachRow(testing::RopeCase& rope, const Visit& visit) {
    const int page_size = rope.memory.format().page_size;
    for (const SequenceTokens& rows : rope.memory.sequences()) {
      for (int at = rows.position; at < rows.position + rows.num_tokens; ++at) {
        visit([&](int group) { return rope.memory.kv().Page(rows.pages[at / page_size], group); },
              at % page_size);
      }
    }
  }
  // K and V of every row, row by row, as stored.
  static std::vector<float> Numbers(testing::RopeCase& rope) {
    const KvFormat& format = rope.memory.format();
    std::vector<float> numbers;
    ForEachRow(rope, [&](const auto& page, int slot) {
      for (int group = 0; group < format.num_groups; ++group) {
        for (int i = 0; i < format.k_maps * format.head_dim; ++i)
          numbers.push_back(
              KValue(format, page(group), i / format.head_dim, i % format.head_dim, slot));
        for (int d = 0; d < format.v_dim; ++d)
          numbers.push_back(VValue(format, page(group), d, slot));
      }
    });
    return numbers;
  }
};

TEST_P(CodeAppendOnDeviceTest, CodesAndScalesEqualTheDefinition) {
  for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved, RopeStyle::kNone}) {
    for (int head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 256}) {
      for (const DiffSpec& spec : {DiffLlamaSpec(4, 2, head_dim), V2Spec(2, 2, head_dim)}) {
        testing::RopeCase rope = Case(spec, style, 0.0), defined = Case(spec, style, 0.0);
        std::fill_n(rope.qkv.end() - spec.v_width(), spec.v_width(), 0.0f);
        defined.qkv = rope.qkv;
        Append(rope);
        AppendByDefinition(defined);
        EXPECT_TRUE(SameBits(Numbers(rope), Numbers(defined))) << testing::Describe(spec);
      }
    }
  }
}

TEST_P(CodeAppendOnDeviceTest, QueryWithoutKAndVIsTheSameAndTouchesNoPage) {
  for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kNone}) {
    const DiffSpec spec = DiffLlamaSpec(4, 2, 48);
    testing::RopeCase whole = Case(spec, style, 0.3), q_alone = Case(spec, style, 0.3);
    q_alone.has_kv = false;
    q_alone.qkv.clear();
    const auto width = static_cast<std::ptrdiff_t>(spec.q_width() + spec.k_width() +
                                                   spec.v_width());
    for (auto row = whole.qkv.begin(); row != whole.qkv.end(); row += width)
      q_alone.qkv.insert(q_alone.qkv.end(), row, row + spec.q_width());
    const std::vector<std::byte> before = q_alone.memory.bytes();
    Append(whole);
    Append(q_alone);
    EXPECT_TRUE(SameBits(q_alone.q, whole.q));
    EXPECT_EQ(q_alone.memory.bytes(), before);
  }
}

TEST_P(CodeAppendOnDeviceTest, RotatedNumbersAreWithinHalfAStepOfUnquantisedPages) {
  for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
    const DiffSpec spec = DiffLlamaSpec(4, 2, 48);
    testing::RopeCase codes = Case(spec, style, 0.3),
                      exact = Case(spec, style, 0.3, DType::kBFloat16);
    Append(codes);
    Append(exact);
    const KvCodec& codec = codes.memory.format().codec;
    if (codec.transforms_k()) testing::TransformHeads(exact.q, spec.head_dim);
    for (size_t i = 0; i < codes.q.size(); ++i)
      ASSERT_NEAR(codes.q[i], exact.q[i], codec.transforms_k() ? 0.1 : 0.0) << i;
    const std::vector<float> found = Numbers(codes);
    std::vector<float> expected = Numbers(exact);
    // Half a step; for E4M3, at the largest numbers.
    const float of_largest = codec.dtype == DType::kFp8E4M3 ? 16.0f / 448 : 0.5f / 127;
    size_t head = 0;  // of a slot and group: K1, K2 and the halves of V
    for (auto at = expected.begin(); at != expected.end(); at += spec.head_dim, ++head) {
      const int bits = head % 4 < 2 ? codec.k_bits : codec.v_bits;
      std::vector<float> row(at, at + spec.head_dim);
      if (bits == 4) testing::TransformHeads(row, spec.head_dim);
      const auto [min, max] = std::ranges::minmax(row);
      // Half a step, for four bits including its zero, plus the rounding of bfloat16 pages.
      const float allowed = bits == 4 ? (0.5f + 1.0f / 32) * (max - min) / 15 + 0.08f
                                      : std::max(max, -min) * of_largest + 0.02f;
      for (size_t d = 0; d < row.size(); ++d)
        ASSERT_NEAR(found[head * row.size() + d], row[d], allowed) << head << ", " << d;
    }
  }
}

TEST_P(CodeAppendOnDeviceTest, NonFiniteValueMakesTheScaleNan) {
  for (float poison : {kNan, std::numeric_limits<float>::infinity()}) {
    const DiffSpec spec = DiffLlamaSpec(1, 1, 64);
    testing::RopeCase rope = Case(spec, RopeStyle::kHalfSplit, 0.0);
    rope.qkv[static_cast<size_t>(spec.q_width()) + 64 + 3] = poison;  // K2 of the first row
    Append(rope);
    const std::vector<float> numbers = Numbers(rope);
    for (size_t i = 0; i < numbers.size(); ++i)
      ASSERT_EQ(std::isnan(numbers[i]), i >= 64 && i < 128) << i;
  }
}

TEST_P(CodeAppendOnDeviceTest, SlotsAfterTheLastRowOfAFreshPageAreZero) {
  testing::RopeCase rope = Case(DiffLlamaSpec(2, 2, 48), RopeStyle::kHalfSplit, 0.1);
  Append(rope);
  const KvFormat& format = rope.memory.format();
  const SequenceTokens& first = rope.memory.sequences().front();
  for (int slot = first.num_tokens; slot < format.page_size; ++slot) {
    for (int group = 0; group < format.num_groups; ++group) {
      const std::byte* page = rope.memory.kv().Page(first.pages[0], group);
      for (int d = 0; d < format.v_dim; ++d) ASSERT_EQ(VValue(format, page, d, slot), 0.0f);
      for (int d = 0; d < format.head_dim; ++d) ASSERT_EQ(KValue(format, page, 1, d, slot), 0.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CodeAppendOnDeviceTest, ::testing::ValuesIn(kPagesOfCodes),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace diffserve
