// SPDX-License-Identifier: Apache-2.0
// The order of starts by Request::priority.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/testing/engine/scheduler_bench.h"

namespace diffserve {
namespace {

using testing::MakeRequest;
using testing::SchedulerBench;
using testing::SmallEngine;
using Ids = std::vector<RequestId>;

EngineOptions OneSeat() {
  EngineOptions options = SmallEngine();
  options.max_num_seqs = 1;
  return options;
}

Request Of(RequestId id, int priority, uint64_t client = 1) {
  Request request = MakeRequest(id, 2, 1);
  request.priority = priority;
  request.client = client;
  return request;
}

// The order in which requests start, if each computes everything in one step.
Ids OrderOfStarts(SchedulerBench& bench) {
  Ids started;
  while (bench.scheduler.HasWork()) started.push_back(bench.Step().begin()->first);
  return started;
}

TEST(PriorityTest, LowerPriorityNumbersStartFirstThenEarlierArrivals) {
  SchedulerBench bench(OneSeat());
  const std::vector<int> priorities = {
      0, 5, -3, 0, 5, -3, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()};
  for (size_t i = 0; i < priorities.size(); ++i) bench.Add(Of(i + 1, priorities[i]));
  EXPECT_EQ(OrderOfStarts(bench), (Ids{8, 3, 6, 1, 4, 2, 5, 7}));
}

TEST(PriorityTest, LowerPriorityNumbersStartFirstAcrossClients) {
  SchedulerBench bench(OneSeat());
  for (RequestId id = 1; id <= 3; ++id) bench.Add(Of(id, 1, 1));
  for (RequestId id = 4; id <= 6; ++id) bench.Add(Of(id, 1, 2));
  for (RequestId id = 7; id <= 8; ++id) bench.Add(Of(id, 0, 1));
  EXPECT_EQ(OrderOfStarts(bench), (Ids{7, 8, 4, 1, 5, 2, 6, 3}));
}

// How many of an endless stream of more urgent requests start before one of this priority.
int StartsBefore(int priority, int others) {
  SchedulerBench bench(OneSeat());
  bench.Add(Of(1, priority, 1));
  int before = 0;
  for (RequestId id = 2;; ++id) {
    bench.Add(Of(id, others, id % 3));
    if (bench.Step().begin()->first == 1) return before;
    ++before;
    if (before > 100000) return before;
  }
}

TEST(PriorityTest, EverySequenceStartsDespiteMoreUrgentOnes) {
  constexpr int kPasses = WaitingQueue::kPassesMax;
  EXPECT_EQ(StartsBefore(0, 0), 0);
  EXPECT_GE(StartsBefore(1, 0), kPasses);
  EXPECT_LE(StartsBefore(1, 0), kPasses + 3);
  EXPECT_GT(StartsBefore(8, 0), StartsBefore(2, 0));
  EXPECT_LE(StartsBefore(std::numeric_limits<int>::max(), std::numeric_limits<int>::min()),
            34 * kPasses);
}

TEST(PriorityTest, PreemptedSequenceWaitsAtItsLevel) {
  EngineOptions options = SmallEngine();
  options.num_pages = 6;
  options.max_model_len = 24;
  SchedulerBench bench(options);
  for (RequestId id = 1; id <= 2; ++id) {
    Request request = MakeRequest(id, 7, 16, 20 * static_cast<int>(id));
    request.priority = 3;
    bench.Add(request);
  }
  while (bench.scheduler.counters().preemptions == 0) bench.Step();
  bench.Add(Of(3, 0));
  bench.Add(Of(4, 9));
  EXPECT_EQ(bench.scheduler.queue().Next()->request.id, 3u);
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.size(), 4u);
  EXPECT_EQ(bench.ends.at(2).finish, FinishReason::kLength);
}

}  // namespace
}  // namespace diffserve
