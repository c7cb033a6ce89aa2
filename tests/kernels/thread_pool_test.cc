// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/thread_pool.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace diffserve {
namespace {

TEST(ThreadPoolTest, EveryWorkerRunsOncePerJob) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool({.num_threads = threads, .pin = false, .spin_us = 5});
    ASSERT_EQ(pool.num_threads(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    pool.Run([&](int worker) { ++calls[static_cast<size_t>(worker)]; });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(threads), 1));
  }
}

TEST(ThreadPoolTest, ManyJobsInARowEachFinishBeforeRunReturns) {
  ThreadPool pool({.num_threads = 4, .pin = false, .spin_us = 2});
  std::vector<int64_t> sums(4);
  constexpr int kJobs = 1000;
  for (int job = 1; job <= kJobs; ++job) {
    // Unsynchronised: Run must order the jobs.
    pool.Run([&](int worker) { sums[static_cast<size_t>(worker)] += job; });
  }
  for (int64_t sum : sums) EXPECT_EQ(sum, int64_t{kJobs} * (kJobs + 1) / 2);
}

TEST(ThreadPoolTest, JobsFindWorkersThatHaveGoneToSleep) {
  ThreadPool pool({.num_threads = 3, .pin = false, .spin_us = 0});
  std::atomic<int> calls{0};
  for (int job = 0; job < 20; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.Run([&](int) { calls.fetch_add(1); });
  }
  EXPECT_EQ(calls.load(), 60);
}

TEST(ThreadPoolTest, SlowWorkerIsWaitedFor) {
  ThreadPool pool({.num_threads = 2, .pin = false, .spin_us = 0});
  int value = 0;
  pool.Run([&](int worker) {
    if (worker == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    value = 1;
  });
  EXPECT_EQ(value, 1);
}

TEST(ThreadPoolTest, CallingThreadMayChange) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  std::atomic<int> calls{0};
  std::thread other([&] { pool.Run([&](int) { calls.fetch_add(1); }); });
  other.join();
  pool.Run([&](int) { calls.fetch_add(1); });
  EXPECT_EQ(calls.load(), 4);
}

TEST(ThreadPoolTest, IdleWorkersUseNoCpuTime) {
  ThreadPool pool({.num_threads = 4, .pin = false, .spin_us = 50});
  pool.Run([](int) {});
  const auto cpu_ms = [] {
    timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_ms() - before, 100);  // three spinning workers would use up to 600
}

TEST(ThreadPoolTest, ZeroThreadsMeansAllAvailableCpus) {
  EXPECT_GE(AvailableCpus(), 1);
  EXPECT_EQ(ThreadPool({}).num_threads(), AvailableCpus());
}

TEST(ThreadPoolTest, CallerKeepsItsAffinityAndLaterPoolsSeeAllCpus) {
  const int cpus = AvailableCpus();
  {
    ThreadPool pool({.num_threads = cpus, .pin = true});
    pool.Run([](int) {});
  }
  EXPECT_EQ(AvailableCpus(), cpus);
}

TEST(RunSharesTest, EachItemIsDoneOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool({.num_threads = threads, .pin = false});
    for (int count : {0, 1, 7, 32, 1000}) {
      for (bool worth_waking : {false, true}) {
        std::vector<std::atomic<int>> done(static_cast<size_t>(count));
        RunShares(pool, count, worth_waking, [&](int begin, int end) {
          for (int i = begin; i < end; ++i) done[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const std::atomic<int>& item : done) ASSERT_EQ(item.load(), 1);
      }
    }
  }
}

TEST(RunSharesTest, OthersDoTheShareOfAWorkerThatIsHeld) {
  constexpr int kCount = 1000;
  ThreadPool pool({.num_threads = 2, .pin = false});
  std::atomic<int> done{0};
  RunShares(pool, kCount, /*worth_waking=*/true, [&](int begin, int end) {
    while (begin == 0 && done.load() < kCount - end) std::this_thread::yield();
    done.fetch_add(end - begin);
  });
  EXPECT_EQ(done.load(), kCount);
}

TEST(ShareOfTest, SharesAreAPartitionAndDifferByAtMostOne) {
  for (int count : {0, 1, 5, 64, 1000, 2000000000}) {
    for (int workers : {1, 2, 3, 7, 128}) {
      int end = 0;
      for (int worker = 0; worker < workers; ++worker) {
        const Share share = ShareOf(count, worker, workers);
        EXPECT_EQ(share.begin, end);
        EXPECT_GE(share.end - share.begin, count / workers);
        EXPECT_LE(share.end - share.begin, count / workers + 1);
        end = share.end;
      }
      EXPECT_EQ(end, count);
    }
  }
}

}  // namespace
}  // namespace diffserve
