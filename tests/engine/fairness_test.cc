// SPDX-License-Identifier: Apache-2.0
// Fairness: one client's requests delay another's by no more than its share of the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/testing/engine/scheduler_bench.h"

namespace diffserve {
namespace {

using testing::MakeRequest;
using testing::SchedulerBench;
using testing::SmallEngine;
using TokensByRequest = std::map<RequestId, int>;

constexpr uint64_t kMany = 1, kFew = 2;  // clients

Request Of(uint64_t client, Request request) {
  request.client = client;
  return request;
}

TEST(FairnessTest, ClientsTakeTurnsToStart) {
  EngineOptions options = SmallEngine();
  options.max_num_seqs = 1;
  SchedulerBench bench(options);
  for (RequestId id = 1; id <= 6; ++id) bench.Add(Of(kMany, MakeRequest(id, 2, 1)));
  for (RequestId id = 7; id <= 8; ++id) bench.Add(Of(kFew, MakeRequest(id, 2, 1)));
  std::vector<RequestId> started;
  while (bench.scheduler.HasWork()) started.push_back(bench.Step().begin()->first);
  EXPECT_EQ(started, (std::vector<RequestId>{1, 7, 2, 8, 3, 4, 5, 6}));
}

TEST(FairnessTest, ClientWithTheFewestPagesIsNext) {
  EngineOptions options = SmallEngine();
  options.max_num_seqs = 3;
  SchedulerBench bench(options);
  bench.Add(Of(kMany, MakeRequest(1, 12, 8)));
  bench.Add(Of(kFew, MakeRequest(2, 2, 8)));
  bench.Step();
  bench.Add(Of(kMany, MakeRequest(3, 2, 8)));
  bench.Add(Of(kFew, MakeRequest(4, 2, 8)));
  EXPECT_TRUE(bench.Step().contains(4));
  EXPECT_EQ(bench.scheduler.queue().Next()->request.id, 3u);
}

// Eight sequences decode for one client and one for the other. By itself the second would need
// steps of one token.
TEST(FairnessTest, ClientGetsTheOthersTokensPlusTheOverheadPerStep) {
  EngineOptions options = SmallEngine();
  options.max_num_seqs = 9;
  options.num_pages = 64;
  SchedulerBench bench(options);
  for (RequestId id = 1; id <= 8; ++id) bench.Add(Of(kMany, MakeRequest(id, 2, 40)));
  bench.Step();
  bench.Add(Of(kFew, MakeRequest(9, 1, 20)));
  bench.Step();
  bench.costs.overhead_tokens = 3;
  std::map<RequestId, int> steps;
  for (int step = 0; step < 8; ++step) {
    const TokensByRequest computed = bench.Step();
    EXPECT_EQ(computed.size(), 5u);
    EXPECT_TRUE(computed.contains(9));
    for (const auto& [id, tokens] : computed) ++steps[id];
  }
  for (RequestId id = 1; id <= 8; ++id) EXPECT_EQ(steps[id], 4) << "its sequences take turns";
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.size(), 9u);
}

// Sequence 3 needs its second page when the others hold all. It has no page in its turn, and the
// next turn is the other's all the same.
TEST(FairnessTest, TurnWithoutAPageIsATurn) {
  EngineOptions options = SmallEngine();
  options.num_pages = 5;
  SchedulerBench bench(options);
  bench.Add(Of(kFew, MakeRequest(1, 4, 5, 10)));
  bench.Add(Of(kMany, MakeRequest(2, 4, 5, 20)));
  bench.Add(Of(kMany, MakeRequest(3, 4, 5, 30)));
  EXPECT_EQ(bench.Step(), (TokensByRequest{{1, 4}, {2, 4}, {3, 4}}));
  bench.costs.overhead_tokens = 0;
  EXPECT_EQ(bench.Step(), (TokensByRequest{{1, 1}, {2, 1}}));
  EXPECT_EQ(bench.Step(), (TokensByRequest{{1, 1}})) << "the turn of 3";
  EXPECT_EQ(bench.scheduler.pool().num_available(), 0);
  EXPECT_EQ(bench.Step(), (TokensByRequest{{1, 1}, {2, 1}}));
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.size(), 3u);
  EXPECT_EQ(bench.scheduler.counters().preemptions, 0u);
}

TEST(FairnessTest, SingleClientGetsTheWholeStep) {
  SchedulerBench bench(SmallEngine());
  bench.costs.overhead_tokens = 0;
  for (RequestId id = 1; id <= 4; ++id)
    bench.Add(Of(kMany, MakeRequest(id, 8, 1, 10 * static_cast<int>(id))));
  EXPECT_EQ(bench.Step(), (TokensByRequest{{1, 8}, {2, 8}}));
}

// Four sequences of kMany hold all eight pages.
SchedulerBench FullOfMany() {
  EngineOptions options = SmallEngine();
  options.num_pages = 8;
  options.max_num_batched_tokens = 64;
  SchedulerBench bench(options);
  for (RequestId id = 1; id <= 4; ++id)
    bench.Add(Of(kMany, MakeRequest(id, 7, 2, 10 * static_cast<int>(id))));
  bench.Step();
  return bench;
}

TEST(FairnessTest, ClientAboveItsPartMakesRoomForOneBelow) {
  SchedulerBench bench = FullOfMany();
  ASSERT_EQ(bench.scheduler.pool().num_available(), 0);
  bench.Add(Of(kFew, MakeRequest(9, 4, 2)));
  EXPECT_TRUE(bench.Step().contains(9));
  EXPECT_EQ(bench.scheduler.counters().preemptions, 1u);
  EXPECT_EQ(bench.scheduler.queue().Next()->request.id, 4u) << "the youngest of the other";
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.size(), 5u);
}

TEST(FairnessTest, ClientThatWantsMoreThanItsPartWaits) {
  SchedulerBench bench = FullOfMany();
  bench.Add(Of(kFew, MakeRequest(9, 17, 2)));
  bench.Step();
  EXPECT_EQ(bench.scheduler.counters().preemptions, 0u);
  bench.RunToEnd();
  EXPECT_EQ(bench.ends.size(), 5u);
}

// Steps take overhead + tokens. 500 prompts of full length come first, then a chat.
TEST(FairnessTest, ManyPromptsDelayAnotherClientsChatByItsOwnTimePlusOneStep) {
  EngineOptions options = SmallEngine();
  options.num_pages = 256;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 64;
  for (const int overhead : {0, 1, 5, 50}) {
    const auto time_of_chat = [&](int prompts_before) {
      SchedulerBench bench(options);
      bench.costs.overhead_tokens = overhead;
      RequestId id = 1;
      for (; id <= static_cast<RequestId>(prompts_before); ++id)
        bench.Add(Of(kMany, MakeRequest(id, 120, 8, static_cast<int>(id % 100))));
      for (int step = 0; step < 100 && prompts_before > 0; ++step) bench.Step();
      bench.Add(Of(kFew, MakeRequest(id, 20, 30, 200)));
      int time = 0;
      while (!bench.ends.contains(id)) {
        time += overhead;
        for (const auto& [request, tokens] : bench.Step()) time += tokens;
      }
      return time;
    };
    EXPECT_LE(time_of_chat(500), 2 * time_of_chat(0) + overhead + options.max_num_batched_tokens)
        << "overhead " << overhead;
  }
}

}  // namespace
}  // namespace diffserve
