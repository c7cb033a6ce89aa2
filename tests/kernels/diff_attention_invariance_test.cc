// What must not change a bit on the CPU alone: the size of pages, the number of threads, the width
// of registers.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/attention_batch.h"
#include "tests/testing/attention_specs.h"

namespace diffserve {
namespace {

using testing::AttentionBatch;
using testing::KernelLevels;
using testing::SameBits;

std::vector<DiffSpec> Specs() {
  DiffSpec ragged = testing::GroupedSpec(1, 16);
  ragged.v_dim = 19;
  return {testing::DiffLlamaSpec(4, 2, 16), testing::PlainSpec(3, 1, 24), testing::V2Spec(4, 1, 32),
          ragged};
}

constexpr DType kFormats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::vector<float> Attend(const DiffSpec& spec, int page_size, DType pages, CpuIsa isa,
                          int num_threads) {
  AttentionBatch batch(spec, {{30, 1}, {0, 70}, {64, 1}, {10, 7}},
                       {.format = KvFormat::Of(spec, page_size, pages)});
  ThreadPool pool({.num_threads = num_threads, .pin = false});
  std::vector<float> out;
  cpu::AttentionWorkspace workspace;
  cpu::DiffAttention(batch.Args(out), workspace, isa, pool);
  return out;
}

TEST(DiffAttentionInvarianceTest, ThePageSizeChangesNoBit) {
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      for (CpuIsa isa : KernelLevels()) {
        const std::vector<float> expected = Attend(spec, 16, pages, isa, 1);
        for (int page_size : {32, 48, 64, 128})
          EXPECT_TRUE(SameBits(Attend(spec, page_size, pages, isa, 1), expected)) << page_size;
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, TheNumberOfThreadsChangesNoBit) {
  for (CpuIsa isa : KernelLevels()) {
    const std::vector<float> expected = Attend(Specs()[0], 16, DType::kFloat32, isa, 1);
    for (int threads : {2, 3, 5})
      EXPECT_TRUE(SameBits(Attend(Specs()[0], 16, DType::kFloat32, isa, threads), expected))
          << threads;
  }
}

TEST(DiffAttentionInvarianceTest, SixteenLanesGiveTheSameBitsInOneRegisterAndInTwo) {
  const std::vector<CpuIsa> levels = SupportedCpuIsas();
  if (std::find(levels.begin(), levels.end(), CpuIsa::kAvx512) == levels.end())
    GTEST_SKIP() << "no AVX-512 here";
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      EXPECT_TRUE(SameBits(Attend(spec, 16, pages, CpuIsa::kPaired16, 1),
                           Attend(spec, 16, pages, CpuIsa::kAvx512, 1)));
    }
  }
}

}  // namespace
}  // namespace diffserve
