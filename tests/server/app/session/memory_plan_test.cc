// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/memory_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace diffserve {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// 1000 MiB are free and a page of 16 slots takes 1 MiB. At least 10 pages, and 100 if they fit.
MemoryDemand PlainMemory() {
  MemoryDemand demand;
  demand.free_bytes = 1000.0 * kMiB;
  demand.engine.page_size = 16;
  demand.layout.page = kMiB;
  demand.kv = {.least_tokens = 160, .wanted_tokens = 1600};
  return demand;
}

MemoryDemand MemoryWith(void (*change)(MemoryDemand& demand)) {
  MemoryDemand demand = PlainMemory();
  change(demand);
  return demand;
}

// The same with a state of 1 MiB per sequence.
MemoryDemand MemoryWithStates(int sequences, void (*change)(MemoryDemand& demand) = nullptr) {
  MemoryDemand demand = PlainMemory();
  demand.layout.slot = kMiB;
  demand.engine.max_num_seqs = sequences;
  if (change != nullptr) change(demand);
  return demand;
}

Result<MemoryPlan> PlannedMemory(const MemoryDemand& demand) {
  return PlanMemory(demand, [](double bytes) { return "; beside " + MiB(bytes); });
}

TEST(MemoryPlanTest, PagesFollowFromFreeMemoryAndFlags) {
  struct Case {
    const char* name;
    MemoryDemand demand;
    int pages;
  };
  const std::vector<Case> cases = {
      {"as many as wanted", PlainMemory(), 100},
      {"0.4 of what is free", MemoryWith([](auto& d) { d.kv.wanted_tokens = 16'000; }), 400},
      {"the minimum may take more", MemoryWith([](auto& d) { d.kv.least_tokens = 8000; }), 500},
      {"an amount is used in full", MemoryWith([](auto& d) { d.asked = {"50MiB", 50 * kMiB, 0}; }),
       50},
      {"so is a share", MemoryWith([](auto& d) { d.asked = {"0.5", 0, 0.5}; }), 500},
      {"a GPU's pages as wanted", MemoryWith([](auto& d) { d.on_gpu = true; }), 100},
      {"a server's fill it", MemoryWith([](auto& d) { d.on_gpu = d.fills_the_gpu = true; }), 900},
      {"a whole GPU is 0.9 of it", MemoryWith([](auto& d) {
         d.on_gpu = true;
         d.asked = {"1", 0, 1};
       }),
       900},
      {"one page at least", MemoryWith([](auto& d) { d.kv = {}; }), 1},
  };
  for (const Case& c : cases) {
    const Result<MemoryPlan> plan = PlannedMemory(c.demand);
    ASSERT_TRUE(plan.ok()) << c.name << ": " << plan.status().message();
    EXPECT_EQ(plan->num_pages, c.pages) << c.name;
    EXPECT_EQ(plan->num_state_slots + plan->num_window_pages, 0) << c.name;
    EXPECT_EQ(plan->max_num_seqs, c.demand.engine.max_num_seqs) << c.name;
  }
}

TEST(MemoryPlanTest, StatesTakeHalfOfTheMemoryAtMost) {
  struct Case {
    const char* name;
    MemoryDemand demand;
    int slots, sequences, pages;
  };
  const std::vector<Case> cases = {
      {"a slot and a snapshot each", MemoryWithStates(8), 16, 8, 100},
      {"as many sequences as fit 200 MiB", MemoryWithStates(256), 200, 100, 100},
      {"their pages have the rest",
       MemoryWithStates(256, [](auto& d) { d.kv.wanted_tokens = 16'000; }), 200, 100, 200},
      {"no snapshots",
       MemoryWithStates(256, [](auto& d) { d.engine.enable_prefix_caching = false; }), 200, 200,
       100},
      {"what a step can run",
       MemoryWithStates(256, [](auto& d) { d.engine.max_num_batched_tokens = 9; }), 18, 256, 100},
      {"sequences without an engine", MemoryWithStates(256, [](auto& d) { d.sequences = 4; }), 4,
       256, 100},
      {"one sequence at least", MemoryWithStates(256, [](auto& d) { d.layout.slot = 150 * kMiB; }),
       2, 1, 100},
  };
  for (const Case& c : cases) {
    const Result<MemoryPlan> plan = PlannedMemory(c.demand);
    ASSERT_TRUE(plan.ok()) << c.name << ": " << plan.status().message();
    EXPECT_EQ(plan->num_state_slots, c.slots) << c.name;
    EXPECT_EQ(plan->max_num_seqs, c.sequences) << c.name;
    EXPECT_EQ(plan->num_pages, c.pages) << c.name;
    EXPECT_EQ(plan->state_bytes(c.demand.layout), c.demand.layout.slot * size_t(c.slots)) << c.name;
  }
}

// Each sequence has the window before a token and the token's page, 3 pages, and one more; a step
// of 2048 tokens 128 more; each snapshot 3.
TEST(MemoryPlanTest, WindowsHavePagesOfTheirOwn) {
  MemoryDemand demand = PlainMemory();
  demand.layout.window_page = kMiB / 16;
  demand.engine.window = 32;
  demand.engine.max_num_seqs = 8;
  const Result<MemoryPlan> plan = PlannedMemory(demand);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_window_pages, 8 * 4 + 128 + 8 * 3);
  EXPECT_EQ(plan->num_state_slots, 16);
}

TEST(MemoryPlanTest, ProposalsStopOnlyIfTheirStatesNeedTheMemory) {
  MemoryDemand demand = MemoryWithStates(8);
  demand.engine.speculative_tokens = 7;
  demand.may_stop_proposing = true;
  const Result<MemoryPlan> kept = PlannedMemory(demand);  // 16 rows of 1 MiB, at most 20
  ASSERT_TRUE(kept.ok());
  EXPECT_FALSE(kept->stops_proposing);
  EXPECT_EQ(kept->num_state_slots, 16 + 16);
  demand.layout.slot = 2 * kMiB;
  const Result<MemoryPlan> stopped = PlannedMemory(demand);
  ASSERT_TRUE(stopped.ok());
  EXPECT_TRUE(stopped->stops_proposing);
  EXPECT_EQ(stopped->num_state_slots, 16);
  demand.may_stop_proposing = false;
  EXPECT_FALSE(PlannedMemory(demand)->stops_proposing);
}

TEST(MemoryPlanTest, RefusalSaysWhatIsNeededAndAllowed) {
  const auto refusal = [](void (*change)(MemoryDemand& demand)) {
    return PlannedMemory(MemoryWith(change)).status().message();
  };
  EXPECT_EQ(refusal([](auto& d) { d.kv.least_tokens = 16'000; }),
            "one sequence of 16000 tokens needs 1000.0 MiB of KV pages; allowed: 900.0 MiB of "
            "1000.0 MiB free; lower --max-model-len or raise --kv-cache-memory; beside 1111.1 MiB");
  EXPECT_EQ(refusal([](auto& d) { d.asked = {"5MiB", 5 * kMiB, 0}; }),
            "one sequence of 160 tokens needs 10.0 MiB of KV pages; allowed: 5.0 MiB of 1000.0 MiB "
            "free; lower --max-model-len or raise --kv-cache-memory");
  EXPECT_EQ(refusal([](auto& d) { d.asked = {"2000MiB", 2000 * kMiB, 0}; }),
            "--kv-cache-memory is 2000.0 MiB; allowed: at most the 1000.0 MiB that the weights "
            "leave free");
  EXPECT_EQ(refusal([](auto& d) {
              d.layout.slot = 200 * kMiB;
              d.sequences = 5;
            }),
            "states of 5 sequences beside one sequence of 160 tokens need 1010.0 MiB of KV pages; "
            "allowed: 900.0 MiB of 1000.0 MiB free; lower --batch or raise --kv-cache-memory; "
            "beside 1122.2 MiB");
}

}  // namespace
}  // namespace diffserve
