// A row's bits are its own: whoever shares the batch, however the prompt was cut, whatever the
// number of threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/testing/kernel_attention_batch.h"

namespace diffserve {
namespace {

using testing::AttentionBatch;
using testing::KernelLevels;
using testing::SameBits;
using testing::SequenceShape;

std::vector<DiffSpec> Specs() {
  const DiffSpec diff_llama = {.num_q1_heads = 4,
                               .num_q2_heads = 4,
                               .num_kv_groups = 2,
                               .k_maps = 2,
                               .head_dim = 16,
                               .v_dim = 32,
                               .lambda_kind = LambdaKind::kPerLayer,
                               .sub_norm = SubNorm::kPlain};
  const DiffSpec plain = {.num_q1_heads = 3, .num_kv_groups = 1, .head_dim = 24, .v_dim = 24};
  const DiffSpec v2 = {.num_q1_heads = 4,
                       .num_q2_heads = 4,
                       .num_kv_groups = 1,
                       .k_maps = 1,
                       .head_dim = 32,
                       .v_dim = 32,
                       .lambda_kind = LambdaKind::kPerTokenHead};
  const DiffSpec grouped = {.num_q1_heads = 4,
                            .num_q2_heads = 1,
                            .num_kv_groups = 1,
                            .k_maps = 2,
                            .head_dim = 16,
                            .v_dim = 19,
                            .lambda_kind = LambdaKind::kPerLayer,
                            .sub_norm = SubNorm::kAffine};
  return {diff_llama, plain, v2, grouped};
}

constexpr int kLength = 150;

// All rows of one sequence, computed in chunks that end at `ends`; slots beyond a chunk's end are
// still poisoned when it runs.
std::vector<float> InChunks(const DiffSpec& spec, int page_size, DType dtype,
                            const std::vector<int>& ends, CpuIsa isa, ThreadPool& pool) {
  std::vector<float> out;
  int begin = 0;
  for (int end : ends) {
    AttentionBatch batch(spec, page_size, dtype, {{0, end}});
    SequenceRows& rows = batch.sequences()[0];
    rows.first_row = rows.position = begin;
    rows.num_rows = end - begin;
    // Lambda rows are drawn for the whole batch, so they too are the prefix of the longer batch's.
    const std::vector<float> all = batch.Cpu(isa, pool);
    const size_t width = static_cast<size_t>(spec.out_width());
    out.insert(out.end(),
               all.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(begin) * width),
               all.end());
    begin = end;
  }
  return out;
}

TEST(DiffAttentionInvarianceTest, ChunksAndSingleTokensGiveTheBitsOfTheWholePrompt) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  std::vector<int> singles;
  for (int end = 1; end <= kLength; ++end) singles.push_back(end);
  std::mt19937 generator(7);
  for (const DiffSpec& spec : Specs()) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (CpuIsa isa : KernelLevels()) {
        const std::vector<float> whole = InChunks(spec, 16, dtype, {kLength}, isa, pool);
        EXPECT_TRUE(SameBits(InChunks(spec, 16, dtype, singles, isa, pool), whole)) << NameOf(isa);
        for (int cut = 0; cut < 6; ++cut) {
          std::vector<int> ends;
          for (int end = 0; end < kLength;)
            ends.push_back(end = std::min(kLength, end + 1 + static_cast<int>(generator() % 60)));
          EXPECT_TRUE(SameBits(InChunks(spec, 16, dtype, ends, isa, pool), whole)) << NameOf(isa);
        }
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, ThePageSizeChangesNoBit) {
  ThreadPool pool({.num_threads = 1});
  for (const DiffSpec& spec : Specs()) {
    for (CpuIsa isa : KernelLevels()) {
      const std::vector<float> small_pages = InChunks(spec, 16, DType::kBFloat16, {kLength}, isa,
                                                      pool);
      for (int page_size : {32, 48, 64, 128}) {
        EXPECT_TRUE(SameBits(InChunks(spec, page_size, DType::kBFloat16, {kLength}, isa, pool),
                             small_pages))
            << page_size;
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, SharingABatchChangesNoBit) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  const std::vector<SequenceShape> shapes = {{30, 1}, {0, 25}, {64, 1}, {10, 7}, {127, 1}};
  for (const DiffSpec& spec : Specs()) {
    for (CpuIsa isa : KernelLevels()) {
      AttentionBatch batch(spec, 16, DType::kFloat32, shapes);
      const std::vector<float> together = batch.Cpu(isa, pool);
      const std::vector<SequenceRows> all = batch.sequences();
      for (const SequenceRows& alone : all) {
        batch.sequences() = {alone};
        const std::vector<float> out = batch.Cpu(isa, pool);
        const size_t width = static_cast<size_t>(spec.out_width());
        const size_t begin = static_cast<size_t>(alone.first_row) * width;
        const size_t count = static_cast<size_t>(alone.num_rows) * width;
        EXPECT_TRUE(SameBits(std::span(out).subspan(begin, count),
                             std::span(together).subspan(begin, count)))
            << NameOf(isa);
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, TheNumberOfThreadsChangesNoBit) {
  ThreadPool one({.num_threads = 1});
  for (CpuIsa isa : KernelLevels()) {
    AttentionBatch batch(Specs()[0], 16, DType::kFloat32, {{30, 1}, {0, 70}, {64, 1}, {10, 7}});
    const std::vector<float> expected = batch.Cpu(isa, one);
    for (int threads : {2, 3, 5}) {
      ThreadPool pool({.num_threads = threads, .pin = false});
      EXPECT_TRUE(SameBits(batch.Cpu(isa, pool), expected)) << threads;
    }
  }
}

TEST(DiffAttentionInvarianceTest, SixteenLanesGiveTheSameBitsInOneRegisterAndInTwo) {
  const std::vector<CpuIsa> levels = SupportedCpuIsas();
  if (std::find(levels.begin(), levels.end(), CpuIsa::kAvx512) == levels.end())
    GTEST_SKIP() << "no AVX-512 here";
  ThreadPool pool({.num_threads = 1});
  for (const DiffSpec& spec : Specs()) {
    AttentionBatch batch(spec, 16, DType::kBFloat16, {{30, 1}, {0, 70}});
    EXPECT_TRUE(SameBits(batch.Cpu(CpuIsa::kPaired16, pool), batch.Cpu(CpuIsa::kAvx512, pool)));
  }
}

TEST(DiffAttentionInvarianceTest, ANonFiniteRowYieldsNanInItselfAlone) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  const float infinity = std::numeric_limits<float>::infinity();
  for (float poison : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (const DiffSpec& spec : Specs()) {
      for (CpuIsa isa : KernelLevels()) {
        AttentionBatch batch(spec, 16, DType::kFloat32, {{30, 1}, {0, 25}, {64, 1}});
        const std::vector<float> clean = batch.Cpu(isa, pool);
        constexpr size_t kRow = 9;
        const size_t head_width = static_cast<size_t>(spec.head_dim);
        for (size_t head = 0; head < static_cast<size_t>(spec.num_q1_heads + spec.num_q2_heads);
             ++head) {
          batch.q()[kRow * static_cast<size_t>(spec.q_width()) + head * head_width + 3] = poison;
        }
        const std::vector<float> out = batch.Cpu(isa, pool);
        const size_t width = static_cast<size_t>(spec.out_width());
        for (size_t i = 0; i < out.size(); ++i) {
          if (i / width == kRow) {
            ASSERT_TRUE(std::isnan(out[i])) << i << " at " << NameOf(isa);
          } else {
            ASSERT_EQ(out[i], clean[i]) << i << " at " << NameOf(isa);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace diffserve
