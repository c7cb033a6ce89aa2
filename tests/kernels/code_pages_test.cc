// SPDX-License-Identifier: Apache-2.0
// Pages of codes with scales: how they are written, and attention over them against the
// double-precision reference, which reads the same codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/hadamard.h"
#include "kernels/ops/rope_append.h"
#include "tests/testing/kernels/attention_batch.h"
#include "tests/testing/kernels/attention_rounding.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

using testing::AttentionBatch;
using testing::KernelLevels;
using testing::RandomFloats;
using testing::SameBits;
using testing::SequenceShape;

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

struct CodePages {
  CpuIsa isa;
  DType dtype;
};
std::vector<CodePages> AllCodePages() {
  std::vector<CodePages> all;
  for (CpuIsa isa : KernelLevels()) {
    for (DType dtype : {DType::kInt8, DType::kInt8KInt4V, DType::kInt4})
      all.push_back({isa, dtype});
  }
  return all;
}

// Transforms each head_dim numbers.
template <typename T>
void Transform(std::vector<T>& numbers, int head_dim) {
  std::vector<T> scratch(static_cast<size_t>(head_dim));
  for (size_t begin = 0; begin < numbers.size(); begin += scratch.size())
    Hadamard(numbers.data() + begin, head_dim, scratch.data());
}

std::vector<float> Attend(AttentionBatch& batch, CpuIsa isa, int num_threads = 2) {
  ThreadPool pool({.num_threads = num_threads, .pin = false});
  cpu::AttentionWorkspace workspace;
  std::vector<float> out;
  cpu::DiffAttention(batch.Args(out), workspace, isa, pool);
  return out;
}

class CodePagesTest : public ::testing::TestWithParam<CodePages> {
 public:
  static AttentionBatch MakeBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                                  int page_size = 16, std::vector<uint32_t> names = {}) {
    return {spec,
            shapes,
            {.format = KvFormat::Of(spec, page_size, GetParam().dtype), .names = std::move(names)}};
  }
  static std::vector<DiffSpec> Specs() {
    std::vector<DiffSpec> specs = {testing::DiffLlamaSpec(4, 2, 64), testing::GroupedSpec(1, 96),
                                   testing::V2Spec(4, 2, 64),        testing::PlainSpec(2, 1, 128),
                                   testing::DiffLlamaSpec(2, 1, 24), testing::V2Spec(9, 1, 20)};
    if (GetParam().dtype == DType::kInt4) specs.pop_back();  // 20 dims are not packs of 8
    return specs;
  }
};

TEST_P(CodePagesTest, EveryFamilyMatchesTheReference) {
  for (const DiffSpec& spec : Specs()) {
    for (int page_size : {16, 48}) {
      AttentionBatch batch = MakeBatch(
          spec, {{0, 1}, {70, 1}, {0, 17}, {61, 3}, {255, 3}, {600, 1}, {800, 2}}, page_size);
      batch.MakeQExact();
      testing::ExpectLikeReference(batch, Attend(batch, GetParam().isa));
    }
  }
}

TEST_P(CodePagesTest, RoundedQueryIsNearTheReference) {
  AttentionBatch batch = MakeBatch(testing::DiffLlamaSpec(4, 2, 64), {{300, 5}});
  batch.spec.sub_norm = SubNorm::kNone;
  const testing::Errors errors = testing::ErrorsOf(Attend(batch, GetParam().isa),
                                                   batch.Reference());
  EXPECT_LE(errors.max, 3e-3);
  EXPECT_LE(errors.rms, 6e-4);
}

TEST_P(CodePagesTest, RowIsBitwiseIndependentOfBatchChunksThreadsAndPageSize) {
  for (const DiffSpec& spec : Specs()) {
    const std::vector<SequenceShape> shapes = {{30, 1}, {0, 25}, {1530, 8}};
    AttentionBatch together = MakeBatch(spec, shapes);
    const std::vector<float> all = Attend(together, GetParam().isa, 1);
    for (int threads : {2, 5})
      EXPECT_TRUE(SameBits(Attend(together, GetParam().isa, threads), all)) << threads;
    AttentionBatch wide = MakeBatch(spec, shapes, 64);
    EXPECT_TRUE(SameBits(Attend(wide, GetParam().isa), all));
    const size_t width = static_cast<size_t>(spec.out_width());
    for (int row : {0, 5, 6, 7}) {
      AttentionBatch alone = MakeBatch(spec, {{1530 + row, 1}}, 16, {2});
      EXPECT_TRUE(SameBits(Attend(alone, GetParam().isa),
                           std::span(all).subspan(static_cast<size_t>(26 + row) * width, width)))
          << row;
    }
  }
}

TEST_P(CodePagesTest, NansReachOnlyTheRowsOfTheirSequenceThatAttendToThem) {
  for (const DiffSpec& spec : Specs()) {
    AttentionBatch batch = MakeBatch(spec, {{70, 10}, {5, 12}, {100, 4}});
    const std::vector<float> clean = Attend(batch, GetParam().isa);
    batch.SetVRow(0, 0, 3, testing::RowOf(spec.v_dim, [](int) { return kUnwritten; }));
    batch.SetK(0, 0, 7, spec.k_maps - 1, 5, kUnwritten);
    const std::vector<float> out = Attend(batch, GetParam().isa);
    const size_t width = static_cast<size_t>(spec.out_width());
    const size_t of_group = width / static_cast<size_t>(spec.num_kv_groups);
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_hit = i < 10 * width && i % width < of_group;
      ASSERT_TRUE(is_hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
    }
  }
}

TEST_P(CodePagesTest, NonFiniteQueryYieldsNanOnlyInItsHead) {
  for (float poison : {kUnwritten, std::numeric_limits<float>::infinity()}) {
    const DiffSpec spec = testing::DiffLlamaSpec(2, 1, 64);
    AttentionBatch batch = MakeBatch(spec, {{10, 9}, {100, 1}});
    const std::vector<float> clean = Attend(batch, GetParam().isa);
    batch.q[5 * static_cast<size_t>(spec.q_width()) + 64] = poison;  // q1 of head 1
    const std::vector<float> out = Attend(batch, GetParam().isa);
    const size_t hit = 5 * static_cast<size_t>(spec.out_width()) + 128;
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_hit = i >= hit && i < hit + 128;
      ASSERT_TRUE(is_hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
    }
  }
}

TEST_P(CodePagesTest, ExtremeCodesDoNotSaturate) {
  const DiffSpec spec = testing::PlainSpec(7, 1, 128);
  for (bool weighs_all_equally : {false, true}) {
    AttentionBatch batch = MakeBatch(spec, {{300, 1}});
    batch.out_scale = 1;
    for (float& value : batch.q) value = -2;
    std::vector<float> v;
    for (int d = 0; d < spec.v_dim; ++d) v.push_back(d % 2 == 0 ? 1000.0f : -1000.0f);
    for (int slot = 0; slot <= 300; ++slot) {
      const float k = weighs_all_equally || slot % 2 == 0 ? 0.25f : -0.25f;
      batch.SetKRow(0, 0, slot, 0, std::vector<float>(v.size(), k));
      batch.SetVRow(0, 0, slot, v);
    }
    const std::vector<float> out = Attend(batch, GetParam().isa);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], i % 2 == 0 ? 1000 : -1000, 0.1);
  }
}

// Codes times their scale against a row of K or V; each `part` numbers share a scale.
void ExpectWithinHalfAStep(const std::vector<double>& stored, std::vector<double> row, int bits,
                           int part) {
  if (bits == 4) Transform(row, part);
  for (size_t begin = 0; begin < row.size(); begin += static_cast<size_t>(part)) {
    const std::span<const double> values = std::span(row).subspan(begin, static_cast<size_t>(part));
    const double max = std::max(0.0, *std::ranges::max_element(values));
    const double min = std::min(0.0, *std::ranges::min_element(values));
    // The 4-bit zero is rounded to a sixteenth.
    const double allowed = bits == 4 ? (0.5 + 1.0 / 32) * (max - min) / 15
                                     : 0.5 * std::max(max, -min) / 127;
    for (size_t d = 0; d < values.size(); ++d)
      ASSERT_NEAR(stored[begin + d], values[d], 1.002 * allowed);
  }
}

TEST_P(CodePagesTest, RowsAreWithinHalfAStepOfFloat32Pages) {
  for (const DiffSpec& spec : Specs()) {
    const std::vector<SequenceShape> shapes = {{14, 5}, {0, 1}};
    const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
    const std::vector<float> qkv = RandomFloats(6 * width, 3);
    std::vector<double> inv_freq(static_cast<size_t>(spec.head_dim / 2), 0.3);
    const RopeTable rope(inv_freq, 32, 1.0);
    std::vector<float> q(6 * static_cast<size_t>(spec.q_width()));
    testing::PagedMemory codes(KvFormat::Of(spec, 16, GetParam().dtype), shapes);
    testing::PagedMemory floats(KvFormat::Of(spec, 16, DType::kFloat32), shapes);
    ThreadPool pool({.num_threads = 1, .pin = false});
    for (testing::PagedMemory* memory : {&codes, &floats}) {
      cpu::RopeAppend({.spec = spec,
                       .batch = memory->sequences(),
                       .kv = memory->kv(),
                       .rope = rope.angles(),
                       .qkv = qkv.data(),
                       .q = q.data()},
                      GetParam().isa, pool);
    }
    for (size_t sequence = 0; sequence < shapes.size(); ++sequence) {
      const SequenceTokens& tokens = codes.sequences()[sequence];
      for (int position = tokens.position; position < tokens.position + tokens.num_tokens;
           ++position) {
        const int32_t page = tokens.pages[position / 16];
        const int slot = position % 16;
        for (int group = 0; group < spec.num_kv_groups; ++group) {
          const std::byte* mine = codes.kv().Page(page, group);
          const std::byte* exact = floats.kv().Page(page, group);
          for (int map = 0; map < spec.k_maps; ++map) {
            std::vector<double> stored;
            for (int d = 0; d < spec.head_dim; ++d)
              stored.push_back(KValue(codes.format(), mine, map, d, slot));
            ExpectWithinHalfAStep(stored, KRow(floats.format(), exact, map, slot),
                                  codes.format().codec.k_bits, spec.head_dim);
          }
          std::vector<double> stored;
          for (int d = 0; d < spec.v_dim; ++d)
            stored.push_back(VValue(codes.format(), mine, d, slot));
          ExpectWithinHalfAStep(stored, VRow(floats.format(), exact, slot),
                                codes.format().codec.v_bits, spec.head_dim);
        }
      }
    }
  }
}

// Two workers never write to the same byte.
TEST(CutRowTest, SlotsThatShareBytesOfVBelongToOneWorker) {
  const KvCodec four = Int4Codec::Description();
  for (int position : {0, 3, 8, 21}) {
    for (int num_tokens : {1, 7, 8, 30}) {
      const SequenceTokens sequence = {0, num_tokens, position, nullptr};
      for (int row = -3; row <= num_tokens + 3; ++row) {
        const int cut = cpu::CutRow(sequence, row, four);
        ASSERT_TRUE(cut == 0 || cut == num_tokens || (position + cut) % four.v_pack == 0) << row;
        ASSERT_EQ(cut == 0, row <= 0) << row;
        ASSERT_LE(cut - std::clamp(row, 0, num_tokens), four.v_pack - 1);
        ASSERT_EQ(cpu::CutRow(sequence, row, Int8Codec::Description()),
                  std::clamp(row, 0, num_tokens));
      }
    }
  }
}

TEST_P(CodePagesTest, NonFiniteValueMakesItsRowNan) {
  const DiffSpec spec = testing::DiffLlamaSpec(2, 1, 16);
  const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
  std::vector<float> qkv = RandomFloats(width, 3);
  qkv[static_cast<size_t>(spec.q_width()) + 3] = kUnwritten;  // K1
  qkv[width - 1] = std::numeric_limits<float>::infinity();    // the second half of V
  std::vector<double> inv_freq(8, 0.3);
  const RopeTable rope(inv_freq, 32, 1.0);
  std::vector<float> q(static_cast<size_t>(spec.q_width()));
  testing::PagedMemory codes(KvFormat::Of(spec, 16, GetParam().dtype), {{0, 1}});
  ThreadPool pool({.num_threads = 1, .pin = false});
  cpu::RopeAppend({.spec = spec,
                   .batch = codes.sequences(),
                   .kv = codes.kv(),
                   .rope = rope.angles(),
                   .qkv = qkv.data(),
                   .q = q.data()},
                  GetParam().isa, pool);
  const std::byte* page = codes.kv().Page(codes.sequences()[0].pages[0], 0);
  const std::vector<double> k1 = KRow(codes.format(), page, 0, 0);
  const std::vector<double> k2 = KRow(codes.format(), page, 1, 0);
  const std::vector<double> v = VRow(codes.format(), page, 0);
  for (size_t d = 0; d < 16; ++d) {
    EXPECT_TRUE(std::isnan(k1[d]));
    EXPECT_TRUE(std::isfinite(k2[d]));
    EXPECT_TRUE(std::isfinite(v[d]));
    EXPECT_TRUE(std::isnan(v[16 + d]));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, CodePagesTest, ::testing::ValuesIn(AllCodePages()),
                         [](const auto& info) {
                           return std::string(NameOf(info.param.isa)) + "_" +
                                  std::string(NameOf(info.param.dtype));
                         });

}  // namespace
}  // namespace diffserve
