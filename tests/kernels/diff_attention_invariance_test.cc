// SPDX-License-Identifier: Apache-2.0
// What must not change a bit, only on the CPU: the size of pages, the number of threads, the width
// of registers.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <span>

#include "tests/testing/kernels/attention_batch.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

using testing::AttentionBatch;
using testing::KernelLevels;
using testing::SameBits;
using testing::SequenceShape;

std::vector<DiffSpec> Specs() {
  DiffSpec ragged = testing::GroupedSpec(1, 16);
  ragged.v_dim = 19;
  return {testing::DiffLlamaSpec(4, 2, 16), testing::PlainSpec(3, 1, 24), testing::V2Spec(4, 1, 32),
          ragged};
}

constexpr DType kFormats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::vector<float> AttendOnce(AttentionBatch& batch, CpuIsa isa, int num_threads) {
  ThreadPool pool({.num_threads = num_threads, .pin = false});
  cpu::AttentionWorkspace workspace;
  std::vector<float> out;
  cpu::DiffAttention(batch.Args(out), workspace, isa, pool);
  return out;
}

std::vector<float> AttendOnce(const DiffSpec& spec, int page_size, DType pages, CpuIsa isa,
                              int num_threads) {
  AttentionBatch batch(spec, {{30, 1}, {0, 70}, {64, 1}, {10, 7}},
                       {.format = KvFormat::Of(spec, page_size, pages)});
  return AttendOnce(batch, isa, num_threads);
}

TEST(DiffAttentionInvarianceTest, PageSizeChangesNoBit) {
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      for (CpuIsa isa : KernelLevels()) {
        const std::vector<float> expected = AttendOnce(spec, 16, pages, isa, 1);
        for (int page_size : {32, 48, 64, 128})
          EXPECT_TRUE(SameBits(AttendOnce(spec, page_size, pages, isa, 1), expected)) << page_size;
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, NumberOfThreadsChangesNoBit) {
  for (CpuIsa isa : KernelLevels()) {
    const std::vector<float> expected = AttendOnce(Specs()[0], 16, DType::kFloat32, isa, 1);
    for (int threads : {2, 3, 5})
      EXPECT_TRUE(SameBits(AttendOnce(Specs()[0], 16, DType::kFloat32, isa, threads), expected))
          << threads;
  }
}

// One worker takes a long sequence as a whole; several workers share it by ranges of slots.
TEST(DiffAttentionInvarianceTest, SplitOfALongSequenceChangesNoBit) {
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      const KvFormat format = KvFormat::Of(spec, 16, pages);
      for (CpuIsa isa : KernelLevels()) {
        for (const std::vector<SequenceShape>& shapes : {std::vector<SequenceShape>{{1534, 1}},
                                                         {{1535, 1}},
                                                         {{1020, 7}},
                                                         {{40, 2}, {2047, 3}}}) {
          AttentionBatch batch(spec, shapes, {.format = format});
          const std::vector<float> alone = AttendOnce(batch, isa, 1);
          for (int threads : {2, 5, 16})
            EXPECT_TRUE(SameBits(AttendOnce(batch, isa, threads), alone)) << threads;
        }
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, SplitOfALongSequenceChangesNoQuantisedLogit) {
  for (const LogitQuant& quant : testing::LogitQuants()) {
    for (CpuIsa isa : KernelLevels()) {
      AttentionBatch batch(Specs()[0], {{40, 2}, {1530, 3}},
                           {.format = KvFormat::Of(Specs()[0], 16, DType::kBFloat16)});
      batch.logit_quant = quant;
      const std::vector<float> alone = AttendOnce(batch, isa, 1);
      for (int threads : {2, 5, 16})
        EXPECT_TRUE(SameBits(AttendOnce(batch, isa, threads), alone)) << threads;
    }
  }
}

// Ranges wholly before the window belong to no worker; the window begins inside the first one.
TEST(DiffAttentionInvarianceTest, SplitOfAWindowChangesNoBit) {
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      for (CpuIsa isa : KernelLevels()) {
        for (const auto& [shapes, window] : {std::pair{std::vector<SequenceShape>{{2534, 1}}, 1500},
                                             {{{1535, 1}}, 1024},
                                             {{{40, 2}, {2047, 3}}, 1111}}) {
          AttentionBatch batch(spec, shapes, {.format = KvFormat::Of(spec, 16, pages)});
          batch.window = window;
          batch.ForgetPagesBehindWindow();
          const std::vector<float> alone = AttendOnce(batch, isa, 1);
          for (int threads : {2, 5, 16})
            EXPECT_TRUE(SameBits(AttendOnce(batch, isa, threads), alone)) << threads;
        }
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, SplitOfAWindowChangesNoQuantisedLogitAndNoCode) {
  const DiffSpec spec = testing::DiffLlamaSpec(4, 2, 16);
  for (DType pages : {DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    for (LogitScale scale : kLogitScales) {
      for (CpuIsa isa : KernelLevels()) {
        AttentionBatch batch(spec, {{40, 2}, {2530, 3}}, {.format = KvFormat::Of(spec, 16, pages)});
        batch.logit_quant = {6, scale};
        batch.window = 1301;
        batch.ForgetPagesBehindWindow();
        const std::vector<float> alone = AttendOnce(batch, isa, 1);
        for (int threads : {2, 5, 16})
          EXPECT_TRUE(SameBits(AttendOnce(batch, isa, threads), alone)) << threads;
      }
    }
  }
}

TEST(DiffAttentionInvarianceTest, PageSizeChangesNoBitOfAWindow) {
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      for (CpuIsa isa : KernelLevels()) {
        std::vector<float> expected;
        for (int page_size : {16, 32, 48, 64, 128}) {
          AttentionBatch batch(spec, {{30, 1}, {0, 70}, {300, 7}},
                               {.format = KvFormat::Of(spec, page_size, pages)});
          batch.window = 53;
          batch.ForgetPagesBehindWindow();
          const std::vector<float> out = AttendOnce(batch, isa, 1);
          if (expected.empty()) expected = out;
          EXPECT_TRUE(SameBits(out, expected)) << page_size;
        }
      }
    }
  }
}

// A preempted sequence computes in one chunk the tokens that it had generated one by one.
TEST(DiffAttentionInvarianceTest, TokenOfALongChunkEqualsTheSameTokenDecodedByManyThreads) {
  constexpr int kPosition = 1270, kRows = 20;  // they cross a range's end, in one chunk and singly
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      const KvFormat format = KvFormat::Of(spec, 16, pages);
      for (CpuIsa isa : KernelLevels()) {
        AttentionBatch chunk(spec, {{kPosition, kRows}}, {.format = format});
        const std::vector<float> together = AttendOnce(chunk, isa, 1);
        const size_t width = static_cast<size_t>(spec.out_width());
        for (int row : {0, 1, 9, 10, 11, kRows - 1}) {
          AttentionBatch token(spec, {{kPosition + row, 1}}, {.format = format});
          EXPECT_TRUE(
              SameBits(AttendOnce(token, isa, 5),
                       std::span(together).subspan(static_cast<size_t>(row) * width, width)))
              << row;
        }
      }
    }
  }
}

// Dot products of bfloat16 round only q and the weights.
TEST(DiffAttentionInvarianceTest, RoundingTheQueryBeforehandChangesNoBitWhereTheLevelRoundsIt) {
  const CpuIsa level = SupportedCpuIsas().back();
  if (!RoundsToBFloat16(level)) GTEST_SKIP() << "no dot products of bfloat16 here";
  const CpuIsa below = level == CpuIsa::kAvx512Bf16 ? CpuIsa::kAvx512 : CpuIsa::kNeon;
  for (DType pages : kFormats) {
    AttentionBatch batch(Specs()[0], {{90, 9}}, {.format = KvFormat::Of(Specs()[0], 16, pages)});
    const std::vector<float> out = AttendOnce(batch, level, 1);
    const std::vector<float> at_level_below = AttendOnce(batch, below, 1);
    for (float& value : batch.q) value = BFloat16ToFloat(FloatToBFloat16(value));
    const bool rounds = pages == DType::kBFloat16;
    EXPECT_EQ(SameBits(AttendOnce(batch, level, 1), out), rounds);
    EXPECT_EQ(SameBits(at_level_below, out), !rounds) << "other formats are float32 arithmetic";
  }
}

// A digest (FNV-1a) of the bits of numbers.
uint64_t DigestOf(uint64_t digest, std::span<const float> numbers) {
  for (float number : numbers) digest = (digest ^ std::bit_cast<uint32_t>(number)) * 0x100000001b3;
  return digest;
}

// AVX2 and NEON do the same operations on lanes in the same order.
TEST(DiffAttentionInvarianceTest, EightLanesGiveTheSameBitsOnEveryProcessor) {
  const CpuIsa isa = testing::EightLanes();
  if (isa == CpuIsa::kPlain) GTEST_SKIP() << "it rounds products";
  uint64_t digest = 0xcbf29ce484222325;
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) digest = DigestOf(digest, AttendOnce(spec, 16, pages, isa, 1));
  }
  for (DType pages : {DType::kInt8, DType::kInt8KInt4V, DType::kInt4})
    digest = DigestOf(digest, AttendOnce(Specs()[0], 16, pages, isa, 1));
  EXPECT_EQ(digest, 16058220002739886750u);
}

TEST(DiffAttentionInvarianceTest, SixteenLanesGiveTheSameBitsInOneRegisterAndInTwo) {
  const std::vector<CpuIsa> levels = SupportedCpuIsas();
  if (std::find(levels.begin(), levels.end(), CpuIsa::kAvx512) == levels.end())
    GTEST_SKIP() << "no AVX-512 here";
  for (const DiffSpec& spec : Specs()) {
    for (DType pages : kFormats) {
      EXPECT_TRUE(SameBits(AttendOnce(spec, 16, pages, CpuIsa::kPaired16, 1),
                           AttendOnce(spec, 16, pages, CpuIsa::kAvx512, 1)));
    }
  }
}

}  // namespace
}  // namespace diffserve
