// A failing seed replays alone: engine_test --gtest_filter='*Simulation*/N', or any other seed with DIFFSERVE_SIMULATION_SEED=N.
#include "tests/testing/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace diffserve {
namespace {

class SimulationTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SimulationTest, KeepsTheTwelveInvariants) {
  const char* replayed = std::getenv("DIFFSERVE_SIMULATION_SEED");
  const uint64_t seed = replayed != nullptr ? std::strtoull(replayed, nullptr, 10) : GetParam();
  testing::Simulation simulation(seed);
  EXPECT_EQ(simulation.Run(400), "") << "seed=" << seed;
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, ::testing::Range<uint64_t>(0, 200));

// The seeds above are worth something only if what they are to test happens in them.
TEST(SimulationCoverageTest, SeedsMeetPreemptionsHitsEvictionsDeferralsAndFaults) {
  uint64_t preemptions = 0, hits = 0, deferrals = 0, corrupted = 0, cancelled = 0, finished = 0;
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> misses{};
  for (uint64_t seed = 0; seed < 25; ++seed) {
    testing::Simulation simulation(seed);
    ASSERT_EQ(simulation.Run(200), "") << "seed=" << seed;
    preemptions += simulation.counters().preemptions;
    hits += simulation.counters().prefix_hits;
    deferrals += simulation.counters().deferrals;
    for (size_t i = 0; i < misses.size(); ++i) misses[i] += simulation.counters().prefix_misses[i];
    corrupted += simulation.corrupted();
    cancelled += simulation.cancelled();
    finished += simulation.finished();
  }
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(hits, 500u);
  EXPECT_GT(deferrals, 20u);
  EXPECT_GT(corrupted, 10u);
  EXPECT_GT(cancelled, 50u);
  EXPECT_GT(finished, 1000u);
  for (size_t i = 0; i < misses.size(); ++i) EXPECT_GT(misses[i], 0u) << "miss reason " << i;
}

}  // namespace
}  // namespace diffserve
