// Pages of int8 codes: how they are written, and attention over them against the double-precision
// reference, which reads the same codes.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops/rope_append.h"
#include "tests/testing/attention_batch.h"
#include "tests/testing/attention_rounding.h"
#include "tests/testing/attention_specs.h"

namespace diffserve {
namespace {

using testing::AttentionBatch;
using testing::KernelLevels;
using testing::RandomFloats;
using testing::SameBits;
using testing::SequenceShape;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Weights are rounded to 16 bits of the largest of 256; the sub-norm magnifies that.
constexpr testing::Tolerance kTolerance = {5e-4, 5e-4};

AttentionBatch MakeBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                         int page_size = 16, std::vector<uint32_t> names = {}) {
  return {spec,
          shapes,
          {.format = KvFormat::Of(spec, page_size, DType::kInt8), .names = std::move(names)}};
}

// Numbers that codes of q hold exactly: so that the kernel rounds nothing but weights.
void MakeQExact(AttentionBatch& batch) {
  const size_t head_dim = static_cast<size_t>(batch.spec.head_dim);
  for (size_t i = 0; i < batch.q.size(); ++i)
    batch.q[i] = i % head_dim == i / head_dim % head_dim ? 127.0f / 64
                                                         : std::nearbyint(batch.q[i] * 63) / 64;
}

std::vector<float> Attend(AttentionBatch& batch, CpuIsa isa, int num_threads = 2) {
  ThreadPool pool({.num_threads = num_threads, .pin = false});
  cpu::AttentionWorkspace workspace;
  std::vector<float> out;
  cpu::DiffAttention(batch.Args(out), workspace, isa, pool);
  return out;
}

std::vector<DiffSpec> Specs() {
  return {testing::DiffLlamaSpec(4, 2, 64), testing::GroupedSpec(1, 96),
          testing::V2Spec(4, 2, 64),        testing::PlainSpec(2, 1, 128),
          testing::DiffLlamaSpec(2, 1, 24), testing::V2Spec(9, 1, 20)};
}

class Int8PagesTest : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(Int8PagesTest, EveryFamilyMatchesTheReference) {
  for (const DiffSpec& spec : Specs()) {
    for (int page_size : {16, 48}) {
      AttentionBatch batch = MakeBatch(
          spec, {{0, 1}, {70, 1}, {0, 17}, {61, 3}, {255, 3}, {600, 1}, {800, 2}}, page_size);
      MakeQExact(batch);
      EXPECT_TRUE(AllClose(Attend(batch, GetParam()), batch.Reference(), kTolerance))
          << testing::Describe(spec);
    }
  }
}

TEST_P(Int8PagesTest, AnyQIsNearTheReferenceWithItsCodes) {
  AttentionBatch batch = MakeBatch(testing::DiffLlamaSpec(4, 2, 64), {{300, 5}});
  batch.spec.sub_norm = SubNorm::kNone;
  const testing::Errors errors = testing::ErrorsOf(Attend(batch, GetParam()), batch.Reference());
  EXPECT_LE(errors.max, 3e-3);
  EXPECT_LE(errors.rms, 6e-4);
}

TEST_P(Int8PagesTest, NeitherBatchNorChunkNorThreadsNorPageSizeChangeABit) {
  for (const DiffSpec& spec : Specs()) {
    const std::vector<SequenceShape> shapes = {{30, 1}, {0, 25}, {1530, 8}};
    AttentionBatch together = MakeBatch(spec, shapes);
    const std::vector<float> all = Attend(together, GetParam(), 1);
    for (int threads : {2, 5})
      EXPECT_TRUE(SameBits(Attend(together, GetParam(), threads), all)) << threads;
    AttentionBatch wide = MakeBatch(spec, shapes, 64);
    EXPECT_TRUE(SameBits(Attend(wide, GetParam()), all));
    const size_t width = static_cast<size_t>(spec.out_width());
    for (int row : {0, 5, 6, 7}) {
      AttentionBatch alone = MakeBatch(spec, {{1530 + row, 1}}, 16, {2});
      EXPECT_TRUE(SameBits(Attend(alone, GetParam()),
                           std::span(all).subspan(static_cast<size_t>(26 + row) * width, width)))
          << row;
    }
  }
}

TEST_P(Int8PagesTest, NansStayInTheirSequenceAndReachWhatAttendsToThem) {
  for (const DiffSpec& spec : Specs()) {
    AttentionBatch batch = MakeBatch(spec, {{70, 10}, {5, 12}, {100, 4}});
    const std::vector<float> clean = Attend(batch, GetParam());
    for (int d = 0; d < spec.v_dim; ++d) batch.SetV(0, 0, 3, d, kNan);
    batch.SetK(0, 0, 7, spec.k_maps - 1, 5, kNan);
    const std::vector<float> out = Attend(batch, GetParam());
    const size_t width = static_cast<size_t>(spec.out_width());
    const size_t of_group = width / static_cast<size_t>(spec.num_kv_groups);
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_hit = i < 10 * width && i % width < of_group;
      ASSERT_TRUE(is_hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
    }
  }
}

TEST_P(Int8PagesTest, ANonFiniteQueryYieldsNanInItsHeadAlone) {
  for (float poison : {kNan, std::numeric_limits<float>::infinity()}) {
    const DiffSpec spec = testing::DiffLlamaSpec(2, 1, 64);
    AttentionBatch batch = MakeBatch(spec, {{10, 9}, {100, 1}});
    const std::vector<float> clean = Attend(batch, GetParam());
    batch.q[5 * static_cast<size_t>(spec.q_width()) + 64] = poison;  // q1 of head 1
    const std::vector<float> out = Attend(batch, GetParam());
    const size_t hit = 5 * static_cast<size_t>(spec.out_width()) + 128;
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_hit = i >= hit && i < hit + 128;
      ASSERT_TRUE(is_hit ? std::isnan(out[i]) : out[i] == clean[i]) << i;
    }
  }
}

TEST_P(Int8PagesTest, ExtremeCodesDoNotSaturate) {
  const DiffSpec spec = testing::PlainSpec(7, 1, 128);
  AttentionBatch batch = MakeBatch(spec, {{40, 1}});
  batch.out_scale = 1;
  for (float& value : batch.q) value = -2;
  for (int slot = 0; slot <= 40; ++slot) {
    for (int d = 0; d < spec.head_dim; ++d) {
      batch.SetK(0, 0, slot, 0, d, slot % 2 == 0 ? 0.25f : -0.25f);
      batch.SetV(0, 0, slot, d, d % 2 == 0 ? 1000.0f : -1000.0f);
    }
  }
  const std::vector<float> out = Attend(batch, GetParam());
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], i % 2 == 0 ? 1000 : -1000, 0.1);
}

TEST_P(Int8PagesTest, RowsAreWrittenWithinHalfAStepOfWhatFloat32PagesHold) {
  for (const DiffSpec& spec : Specs()) {
    const std::vector<SequenceShape> shapes = {{14, 5}, {0, 1}};
    const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
    const std::vector<float> qkv = RandomFloats(6 * width, 3);
    std::vector<double> inv_freq(static_cast<size_t>(spec.head_dim / 2), 0.3);
    const RopeTable rope(inv_freq, 32, 1.0);
    std::vector<float> q(6 * static_cast<size_t>(spec.q_width()));
    testing::PagedMemory codes(KvFormat::Of(spec, 16, DType::kInt8), shapes);
    testing::PagedMemory floats(KvFormat::Of(spec, 16, DType::kFloat32), shapes);
    ThreadPool pool({.num_threads = 1, .pin = false});
    for (testing::PagedMemory* memory : {&codes, &floats}) {
      cpu::RopeAppend({.spec = spec,
                       .batch = memory->sequences(),
                       .kv = memory->kv(),
                       .rope = rope.angles(),
                       .qkv = qkv.data(),
                       .q = q.data()},
                      GetParam(), pool);
    }
    for (size_t sequence = 0; sequence < shapes.size(); ++sequence) {
      const SequenceTokens& tokens = codes.sequences()[sequence];
      for (int position = tokens.position; position < tokens.position + tokens.num_tokens;
           ++position) {
        const int32_t page = tokens.pages[position / 16];
        const int slot = position % 16;
        for (int group = 0; group < spec.num_kv_groups; ++group) {
          const auto expect = [&](int count, auto value_of) {
            double largest = 0;
            for (int d = 0; d < count; ++d)
              largest = std::max(largest, std::abs(double{value_of(floats, d)}));
            for (int d = 0; d < count; ++d)
              ASSERT_NEAR(value_of(codes, d), value_of(floats, d), 0.501 * largest / 127);
          };
          for (int map = 0; map < spec.k_maps; ++map) {
            expect(spec.head_dim, [&](testing::PagedMemory& memory, int d) {
              return KValue(memory.format(), memory.kv().Page(page, group), map, d, slot);
            });
          }
          for (int begin = 0; begin < spec.v_dim; begin += spec.head_dim) {
            expect(spec.head_dim, [&](testing::PagedMemory& memory, int d) {
              return VValue(memory.format(), memory.kv().Page(page, group), begin + d, slot);
            });
          }
        }
      }
    }
  }
}

TEST_P(Int8PagesTest, WhatIsNotFiniteMakesANanOfItsRow) {
  const DiffSpec spec = testing::DiffLlamaSpec(2, 1, 16);
  const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
  std::vector<float> qkv = RandomFloats(width, 3);
  qkv[static_cast<size_t>(spec.q_width()) + 3] = kNan;      // K1
  qkv[width - 1] = std::numeric_limits<float>::infinity();  // the second half of V
  std::vector<double> inv_freq(8, 0.3);
  const RopeTable rope(inv_freq, 32, 1.0);
  std::vector<float> q(static_cast<size_t>(spec.q_width()));
  testing::PagedMemory codes(KvFormat::Of(spec, 16, DType::kInt8), {{0, 1}});
  ThreadPool pool({.num_threads = 1, .pin = false});
  cpu::RopeAppend({.spec = spec,
                   .batch = codes.sequences(),
                   .kv = codes.kv(),
                   .rope = rope.angles(),
                   .qkv = qkv.data(),
                   .q = q.data()},
                  GetParam(), pool);
  const std::byte* page = codes.kv().Page(codes.sequences()[0].pages[0], 0);
  for (int d = 0; d < 16; ++d) {
    EXPECT_TRUE(std::isnan(KValue(codes.format(), page, 0, d, 0)));
    EXPECT_TRUE(std::isfinite(KValue(codes.format(), page, 1, d, 0)));
    EXPECT_TRUE(std::isfinite(VValue(codes.format(), page, d, 0)));
    EXPECT_TRUE(std::isnan(VValue(codes.format(), page, 16 + d, 0)));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Int8PagesTest, ::testing::ValuesIn(KernelLevels()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace diffserve
