// SPDX-License-Identifier: Apache-2.0
// Tests of the shim itself: it computes what the manuals say, and it finds the faults that it must
// find.
#include "tests/kernels/shim/fiber_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/base/cuda/ptx.cuh"
#include "tests/kernels/shim/cuda_runtime.h"
#include "tests/kernels/shim/ptx_on_cpu.h"

namespace diffserve::shim {
namespace {

constexpr uint32_t kSeeds = 12;

std::string RunBlock(unsigned threads, size_t shared_bytes, const std::function<void()>& kernel,
                     GridOptions options = {}) {
  SetGridOptions(options);
  std::string error = RunGrid({{1, 1, 1}, {threads, 1, 1}, shared_bytes}, kernel);
  SetGridOptions({});
  return error;
}

unsigned Lane() { return threadIdx.x % 32; }

TEST(FiberGridTest, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(3 * 2 * 64);
  EXPECT_EQ(RunGrid({{3, 2, 1}, {32, 2, 1}, 0},
                    [&] {
                      ++runs.at(((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.y + threadIdx.y) *
                                    blockDim.x +
                                threadIdx.x);
                    }),
            "");
  EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](int count) { return count == 1; }));
}

TEST(FiberGridTest, CounterCountsBlocksInTurnAndMustEndAtZero) {
  for (const auto& [num_blocks, fault] :
       {std::pair{6u, ""}, {3u, ""}, {4u, "a counter is not 0 after the grid"}}) {
    uint32_t counter = 0;
    int num_last = 0;
    const GridShape shape = {{num_blocks, 1, 1}, {32, 1, 1}, 0};
    EXPECT_EQ(RunGrid(shape,
                      [&] {
                        if (threadIdx.x == 0) num_last += cuda::CountInTurn(&counter, 2) == 2;
                      }),
              fault);
    EXPECT_EQ(num_last, static_cast<int>(num_blocks / 3));
  }
}

TEST(FiberGridTest, SyncthreadsOrdersThreadsAndItsAbsenceIsDetected) {
  for (bool has_barrier : {true, false}) {
    int wrong = 0;
    for (uint32_t seed = 0; seed < kSeeds; ++seed) {
      EXPECT_EQ(
          RunBlock(128, 512,
                   [&] {
                     float* values = reinterpret_cast<float*>(cuda::DynamicShared());
                     values[threadIdx.x] = static_cast<float>(threadIdx.x);
                     if (has_barrier) __syncthreads();
                     wrong += !(values[127 - threadIdx.x] == static_cast<float>(127 - threadIdx.x));
                   },
                   {.seed = seed}),
          "");
    }
    EXPECT_EQ(wrong == 0, has_barrier) << wrong;
  }
}

TEST(FiberGridTest, SyncwarpOrdersLanesAndItsAbsenceIsDetected) {
  for (bool has_barrier : {true, false}) {
    int wrong = 0;
    for (uint32_t seed = 0; seed < kSeeds; ++seed) {
      EXPECT_EQ(RunBlock(64, 256,
                         [&] {
                           float* values = reinterpret_cast<float*>(cuda::DynamicShared());
                           values[threadIdx.x] = 1.0f;
                           if (has_barrier) __syncwarp();
                           wrong += values[threadIdx.x ^ 1] != 1.0f;
                         },
                         {.seed = seed}),
                "");
    }
    EXPECT_EQ(wrong == 0, has_barrier) << wrong;
  }
}

TEST(FiberGridTest, NamedBarrierWaitsOnlyForItsOwnThreads) {
  int after = 0;
  EXPECT_EQ(RunBlock(96, 0,
                     [&] {
                       if (threadIdx.x >= 64) return;  // never arrive
                       cuda::NamedBarrier(3, 64);
                       ++after;
                     }),
            "");
  EXPECT_EQ(after, 64);
}

TEST(FiberGridTest, ThreadsThatWaitForEachOtherAreReported) {
  EXPECT_EQ(RunBlock(64, 0,
                     [] {
                       if (threadIdx.x != 5) __syncthreads();
                     }),
            "threads wait for each other");
  EXPECT_EQ(RunBlock(32, 0,
                     [] {
                       if (Lane() != 5) __syncwarp();
                     }),
            "threads wait for each other");
  EXPECT_EQ(RunBlock(32, 64,
                     [] {
                       if (Lane() == 0) cuda::BarrierInit(0, 1);
                       __syncwarp();
                       cuda::BarrierWait(0, 0);  // no thread arrives
                     }),
            "threads wait for each other");
}

TEST(FiberGridTest, LanesInDifferentOperationsAreReported) {
  EXPECT_NE(RunBlock(32, 0,
                     [] {
                       if (Lane() < 16) {
                         __syncwarp();
                       } else {
                         __shfl_sync(0xffffffffu, 1, 0);
                       }
                     }),
            "");
}

TEST(FiberGridTest, ShufflesAndVotesReachTheRightLanes) {
  int wrong = 0;
  EXPECT_EQ(RunBlock(64, 0,
                     [&] {
                       const int lane = static_cast<int>(Lane());
                       wrong += __shfl_sync(0xffffffffu, lane * 3, 7) != 21;
                       wrong += __shfl_xor_sync(0xffffffffu, lane, 5) != (lane ^ 5);
                       wrong += __shfl_up_sync(0xffffffffu, lane, 4u) !=
                                (lane < 4 ? lane : lane - 4);
                       wrong += __ballot_sync(0xffffffffu, lane % 3 == 0) != 0x49249249u;
                       wrong += __any_sync(0xffffffffu, lane == 31) != 1;
                       wrong += __any_sync(0xffffffffu, 0) != 0;
                       if (lane < 16) wrong += __shfl_xor_sync(0xffffu, lane, 1) != (lane ^ 1);
                     }),
            "");
  EXPECT_EQ(wrong, 0);
}

TEST(FiberGridTest, AsynchronousCopyArrivesAtItsWaitAndNotBefore) {
  std::vector<uint32_t> source(4 * 32, 7);
  int early = 0;
  int late = 0;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(RunBlock(32, 512,
                       [&] {
                         const uint32_t mine = Lane() * 16;
                         const auto* word = reinterpret_cast<const uint32_t*>(
                             cuda::DynamicShared() + mine);
                         cuda::CpAsync16(mine, source.data() + Lane() * 4);
                         cuda::CpAsyncCommit();
                         cuda::CpAsyncCommit();
                         cuda::CpAsyncWait<2>();
                         early += *word != 7;  // a wait for no group
                         cuda::CpAsyncWait<1>();
                         late += *word != 7;
                       },
                       {.seed = seed}),
              "");
  }
  EXPECT_GT(early, 0);
  EXPECT_EQ(late, 0);
}

TEST(FiberGridTest, CopyInFlightOverwritesADestinationThatIsStillRead) {
  std::vector<uint32_t> source(4, 7);
  for (CopyTiming timing : {CopyTiming::kEarly, CopyTiming::kLate}) {
    uint32_t seen = 0;
    EXPECT_EQ(RunBlock(1, 16,
                       [&] {
                         auto* word = reinterpret_cast<uint32_t*>(cuda::DynamicShared());
                         *word = 5;
                         cuda::CpAsync16(0, source.data());
                         seen = *word;
                         cuda::CpAsyncCommit();
                         cuda::CpAsyncWait<0>();
                       },
                       {.copy_timing = timing}),
              "");
    EXPECT_NE(seen, 5u);
  }
}

TEST(FiberGridTest, ThreadThatEndsWithCopiesInFlightIsReported) {
  std::vector<uint32_t> source(4, 7);
  EXPECT_NE(RunBlock(1, 16, [&] { cuda::CpAsync16(0, source.data()); },
                     {.copy_timing = CopyTiming::kLate}),
            "");
}

TEST(FiberGridTest, BulkCopiesArriveBeforeTheirBarrierAndInAnyOrder) {
  std::vector<uint32_t> source(64);
  for (uint32_t i = 0; i < 64; ++i) source[i] = i;
  int wrong = 0;
  int too_soon = 0;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(
        RunBlock(64, 512,
                 [&] {
                   const auto* words = reinterpret_cast<const uint32_t*>(cuda::DynamicShared());
                   if (threadIdx.x == 0) cuda::BarrierInit(256, 1);
                   __syncthreads();
                   for (uint32_t phase = 0; phase < 3; ++phase) {
                     if (threadIdx.x == 0) {
                       cuda::BarrierArriveExpect(256, 256);
                       cuda::BulkCopy(0, source.data(), 128, 256);
                       cuda::BulkCopy(128, source.data() + 32, 128, 256);
                     }
                     if (threadIdx.x == 1) too_soon += words[40] != 40;
                     cuda::BarrierWait(256, phase & 1);
                     wrong += words[threadIdx.x] != threadIdx.x;
                     __syncthreads();
                   }
                 },
                 {.seed = seed}),
        "");
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(too_soon, 0);
}

// A ring of one stage: one warp fills it, two empty it.
TEST(FiberGridTest, BarrierCountsTheArrivalsOfSeveralWarps) {
  constexpr uint32_t kFull = 64, kEmpty = 72, kRounds = 5;
  std::vector<uint32_t> source(kRounds * 4);
  for (uint32_t i = 0; i < source.size(); ++i) source[i] = i;
  int wrong = 0;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(RunBlock(96, 128,
                       [&] {
                         if (threadIdx.x == 0) {
                           cuda::BarrierInit(kFull, 1);
                           cuda::BarrierInit(kEmpty, 2);
                         }
                         __syncthreads();
                         for (uint32_t round = 0; round < kRounds; ++round) {
                           if (threadIdx.x < 64) {
                             cuda::BarrierWait(kFull, round & 1);
                             wrong += *reinterpret_cast<const uint32_t*>(cuda::DynamicShared()) !=
                                      round * 4;
                             __syncwarp();
                             if (Lane() == 0) cuda::BarrierArrive(kEmpty);
                           } else if (Lane() == 0) {
                             cuda::BarrierWait(kEmpty, (round & 1) ^ 1);
                             cuda::BarrierArriveExpect(kFull, 16);
                             cuda::BulkCopy(0, source.data() + round * 4, 16, kFull);
                           }
                         }
                       },
                       {.seed = seed}),
              "");
  }
  EXPECT_EQ(wrong, 0);
}

TEST(FiberGridTest, SharedMemoryStartsAsNansAndItsEndIsChecked) {
  int finite = 0;
  EXPECT_EQ(
      RunBlock(1, 64,
               [&] {
                 for (int i = 0; i < 16; ++i)
                   finite += !std::isnan(reinterpret_cast<const float*>(cuda::DynamicShared())[i]);
               }),
      "");
  EXPECT_EQ(finite, 0);
  EXPECT_NE(RunBlock(32, 64,
                     [] {
                       uint32_t fragments[4];
                       cuda::LdMatrix4(fragments, Lane() * 16);
                     }),
            "");
#if !defined(__SANITIZE_ADDRESS__)  // which reports the write itself
  EXPECT_NE(RunBlock(1, 64, [] { cuda::DynamicShared()[64] = std::byte{1}; }), "");
#endif
}

// ldmatrix of both operands and mma against a plain product of small integers, exact in float.
TEST(FiberGridTest, FragmentsMultiplyLikeMatrices) {
  std::mt19937 generator(3);
  std::vector<float> a(16 * 16), b(16 * 8), c(16 * 8), expected(16 * 8);
  for (float& x : a) x = static_cast<float>(static_cast<int>(generator() % 17) - 8);
  for (float& x : b) x = static_cast<float>(static_cast<int>(generator() % 17) - 8);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < 16; ++k) expected[m * 8 + n] += a[m * 16 + k] * b[k * 8 + n];
    }
  }
  for (bool b_is_transposed : {false, true}) {  // stored [n][k], or [k][n] for the transposing
                                                // ldmatrix
    EXPECT_EQ(RunBlock(32, 1536,
                       [&] {
                         const unsigned lane = Lane();
                         auto* a_shared = reinterpret_cast<uint16_t*>(cuda::DynamicShared());
                         uint16_t* b_shared = a_shared + 256;
                         for (unsigned i = lane; i < 256; i += 32)
                           a_shared[i] = FloatToBFloat16(a[i]);
                         for (unsigned i = lane; i < 256; i += 32) {
                           b_shared[i] = b_is_transposed
                                             ? (i % 16 < 8 ? FloatToBFloat16(b[i / 16 * 8 + i % 16])
                                                           : uint16_t{0})
                                             : (i / 16 < 8 ? FloatToBFloat16(b[i % 16 * 8 + i / 16])
                                                           : uint16_t{0});
                         }
                         __syncwarp();
                         uint32_t a_fragments[4], b_fragments[4];
                         cuda::LdMatrix4(a_fragments,
                                         2 * ((lane / 8 % 2 * 8 + lane % 8) * 16 + lane / 16 * 8));
                         if (b_is_transposed) {
                           cuda::LdMatrix4Transposed(
                               b_fragments,
                               512 + 2 * ((lane / 8 % 2 * 8 + lane % 8) * 16 + lane / 16 * 8));
                         } else {
                           cuda::LdMatrix4(b_fragments, 512 + 2 * ((lane / 16 * 8 + lane % 8) * 16 +
                                                                   lane / 8 % 2 * 8));
                         }
                         float sum[4] = {};
                         cuda::MmaBFloat16(sum, a_fragments, b_fragments[0], b_fragments[1]);
                         for (unsigned i = 0; i < 4; ++i)
                           c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
                       }),
              "");
    EXPECT_EQ(c, expected);
  }
}

TEST(FiberGridTest, AtomicsAddTheValuesOfEveryThread) {
  int total = 0;
  EXPECT_EQ(RunGrid({{5, 1, 1}, {64, 1, 1}, 0},
                    [&] { atomicAdd(&total, static_cast<int>(threadIdx.x)); }),
            "");
  EXPECT_EQ(total, 5 * 64 * 63 / 2);
}

}  // namespace
}  // namespace diffserve::shim
