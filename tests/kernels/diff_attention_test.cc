// Differential attention at every level against the double-precision reference, and exact cases.
#include "kernels/attention/diff_attention.h"

#include <algorithm>
#include <string>

#include "tests/testing/attention_specs.h"
#include "tests/testing/kernel_attention_batch.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::AttentionBatch;
using testing::DiffLlamaSpec;
using testing::GroupedSpec;
using testing::KernelLevels;
using testing::KernelOp;
using testing::PlainSpec;
using testing::SequenceShape;
using testing::ToleranceOf;
using testing::V2Spec;

std::string Describe(const DiffSpec& spec, int page_size, DType dtype, CpuIsa isa) {
  return std::to_string(spec.num_q1_heads) + "+" + std::to_string(spec.num_q2_heads) + " heads, " +
         std::to_string(spec.num_kv_groups) + " groups, head_dim " + std::to_string(spec.head_dim) +
         ", v_dim " + std::to_string(spec.v_dim) + ", page_size " + std::to_string(page_size) +
         ", " + std::string(NameOf(dtype)) + ", " + std::string(NameOf(isa));
}

void ExpectLikeReference(const DiffSpec& spec, int page_size,
                         const std::vector<SequenceShape>& shapes) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    AttentionBatch batch(spec, page_size, dtype, shapes);
    const std::vector<float> expected = batch.Reference();
    ASSERT_TRUE(
        std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
    for (CpuIsa isa : KernelLevels()) {
      EXPECT_TRUE(
          AllClose(batch.Cpu(isa, pool), expected, ToleranceOf(KernelOp::kAttention, dtype, isa)))
          << Describe(spec, page_size, dtype, isa);
    }
  }
}

const std::vector<SequenceShape> kMixedBatch = {{0, 1},  {70, 1}, {0, 37},
                                                {61, 9}, {15, 1}, {16, 20}};

TEST(DiffAttentionTest, EveryFamilyMatchesTheReference) {
  ExpectLikeReference(DiffLlamaSpec(4, 2, 16), 16, kMixedBatch);
  ExpectLikeReference(PlainSpec(4, 2, 32), 16, kMixedBatch);
  ExpectLikeReference(V2Spec(4, 2, 32), 16, kMixedBatch);
  ExpectLikeReference(GroupedSpec(2, 16), 16, kMixedBatch);
}

TEST(DiffAttentionTest, EveryHeadWidthMatchesTheReference) {
  for (int head_dim : {2, 8, 16, 24, 32, 48, 64, 80, 96, 128}) {
    ExpectLikeReference(DiffLlamaSpec(2, 1, head_dim), 16, {{40, 1}, {0, 21}});
    ExpectLikeReference(PlainSpec(2, 2, head_dim), 32, {{40, 1}, {0, 21}});
  }
}

TEST(DiffAttentionTest, AValueWidthThatFillsNoVectorMatchesTheReference) {
  for (int v_dim : {1, 7, 9, 19, 33}) {
    DiffSpec spec = DiffLlamaSpec(2, 2, 16);
    spec.v_dim = v_dim;
    ExpectLikeReference(spec, 16, {{40, 1}, {0, 21}});
  }
}

TEST(DiffAttentionTest, EveryRatioOfQueryHeadsToGroupsMatchesTheReference) {
  for (int ratio : {1, 2, 4, 7, 16}) {
    ExpectLikeReference(DiffLlamaSpec(2 * ratio, 2, 16), 16, {{33, 1}, {3, 14}});
    ExpectLikeReference(V2Spec(ratio, 1, 16), 16, {{33, 1}, {3, 14}});
  }
}

TEST(DiffAttentionTest, EveryPageSizeAndLengthMatchesTheReference) {
  for (int page_size : {16, 32, 48, 64, 128}) {
    ExpectLikeReference(DiffLlamaSpec(2, 1, 16), page_size,
                        {{0, 1},
                         {14, 1},
                         {15, 1},
                         {16, 1},
                         {62, 1},
                         {63, 1},
                         {64, 1},
                         {127, 1},
                         {128, 1},
                         {300, 1},
                         {0, 131},
                         {59, 6}});
  }
}

TEST(DiffAttentionTest, AnyLambdaMatchesTheReference) {
  ThreadPool pool({.num_threads = 1});
  for (float lambda : {-0.7f, 0.0f, 0.2f, 1.0f, 1.8f}) {
    AttentionBatch batch(DiffLlamaSpec(4, 2, 16), 16, DType::kFloat32, {{20, 1}, {0, 30}});
    batch.lambda = lambda;
    const std::vector<float> expected = batch.Reference();
    for (CpuIsa isa : KernelLevels()) {
      EXPECT_TRUE(AllClose(batch.Cpu(isa, pool), expected,
                           ToleranceOf(KernelOp::kAttention, DType::kFloat32, isa)))
          << lambda;
    }
  }
}

TEST(DiffAttentionTest, LambdaZeroEqualsPlainAttention) {
  ThreadPool pool({.num_threads = 1});
  for (CpuIsa isa : KernelLevels()) {
    AttentionBatch batch(DiffLlamaSpec(4, 2, 16), 16, DType::kFloat32, {{20, 1}, {0, 30}});
    batch.lambda = 0;
    batch.spec().sub_norm = SubNorm::kNone;
    const std::vector<float> with_second_map = batch.Cpu(isa, pool);

    // The same K1, V and q1, seen as plain attention: K2 stays in the page, so only the spec of the
    // queries changes.
    std::vector<float> q1;
    const size_t width = static_cast<size_t>(batch.spec().q_width());
    for (int row = 0; row < batch.num_rows(); ++row) {
      const auto begin = batch.q().begin() +
                         static_cast<std::ptrdiff_t>(static_cast<size_t>(row) * width);
      q1.insert(q1.end(), begin, begin + static_cast<std::ptrdiff_t>(width / 2));
    }
    batch.spec().num_q2_heads = 0;
    batch.spec().lambda_kind = LambdaKind::kNone;
    batch.q() = q1;
    const std::vector<float> plain = batch.Cpu(isa, pool);
    ASSERT_EQ(with_second_map.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i)
      ASSERT_EQ(with_second_map[i], plain[i]) << i << " at " << NameOf(isa);
  }
}

TEST(DiffAttentionTest, EqualMapsWithLambdaOneGiveExactlyZero) {
  ThreadPool pool({.num_threads = 1});
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (CpuIsa isa : KernelLevels()) {
      DiffSpec spec = V2Spec(3, 1, 16);  // both maps read one K
      spec.lambda_kind = LambdaKind::kPerLayer;
      spec.sub_norm = SubNorm::kPlain;
      AttentionBatch batch(spec, 16, dtype, {{90, 1}, {0, 30}});
      batch.lambda = 1;
      const size_t width = static_cast<size_t>(spec.q_width());
      for (size_t i = 0; i < batch.q().size(); ++i) {
        if (i % width >= width / 2) batch.q()[i] = batch.q()[i - width / 2];
      }
      for (float value : batch.Cpu(isa, pool)) ASSERT_EQ(value, 0.0f) << NameOf(isa);
    }
  }
}

TEST(DiffAttentionTest, EqualScoresAverageIntegerValuesExactly) {
  // With q = 0 every slot weighs the same, so after 2^n tokens a1 is the exact mean, and o = (1 -
  // lambda) * mean.
  ThreadPool pool({.num_threads = 1});
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (CpuIsa isa : KernelLevels()) {
      DiffSpec spec = DiffLlamaSpec(2, 1, 16);
      spec.sub_norm = SubNorm::kNone;
      AttentionBatch batch(spec, 16, dtype, {{127, 1}});
      batch.lambda = 0.5f;
      batch.out_scale = 1;
      std::fill(batch.q().begin(), batch.q().end(), 0.0f);
      for (int slot = 0; slot < 128; ++slot) {
        for (int d = 0; d < spec.v_dim; ++d)
          batch.SetKv(0, 0, slot, true, 0, d, static_cast<float>((slot + d) % 8));
      }
      for (float value : batch.Cpu(isa, pool)) ASSERT_EQ(value, 1.75f) << NameOf(isa);
    }
  }
}

TEST(DiffAttentionTest, TheFirstTokenIsItsOwnValueTimesOneMinusLambda) {
  ThreadPool pool({.num_threads = 1});
  for (CpuIsa isa : KernelLevels()) {
    DiffSpec spec = DiffLlamaSpec(1, 1, 16);
    spec.sub_norm = SubNorm::kNone;
    AttentionBatch batch(spec, 16, DType::kFloat32, {{0, 1}});
    batch.lambda = 0.25f;
    batch.out_scale = 2;
    for (int d = 0; d < spec.v_dim; ++d) batch.SetKv(0, 0, 0, true, 0, d, static_cast<float>(d));
    const std::vector<float> out = batch.Cpu(isa, pool);
    for (size_t d = 0; d < out.size(); ++d)
      ASSERT_EQ(out[d], 1.5f * static_cast<float>(d)) << NameOf(isa);
  }
}

TEST(DiffAttentionTest, VeryUnequalScoresStayFiniteAndMatchTheReference) {
  ThreadPool pool({.num_threads = 1});
  for (CpuIsa isa : KernelLevels()) {
    AttentionBatch batch(DiffLlamaSpec(2, 1, 16), 16, DType::kFloat32, {{150, 1}, {0, 40}});
    for (float& value : batch.q())
      value *= 300.0f;  // scores spread over hundreds: most p are exactly 0
    const std::vector<float> expected = batch.Reference();
    // Scores of size 1000 carry rounding errors of 1e-4, which exp passes on.
    EXPECT_TRUE(AllClose(batch.Cpu(isa, pool), expected, {5e-3, 5e-3})) << NameOf(isa);
  }
}

}  // namespace
}  // namespace diffserve
