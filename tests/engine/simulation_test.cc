// SPDX-License-Identifier: Apache-2.0
// Runs the simulation with many seeds: DIFFSERVE_SIMULATION_SEEDS, or 500. To replay one seed:
// engine_test --gtest_filter='*Simulation*/N'.
#include "tests/testing/engine/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace diffserve {
namespace {

class SimulationTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SimulationTest, KeepsInvariantsAndOutputsForEveryDepthSpeculationAndStates) {
  const uint64_t seed = GetParam();
  const int proposed = 1 + static_cast<int>(seed % 9);
  std::map<RequestId, testing::Simulation::Outcome> outcomes;  // with depth 1 and no speculation
  const testing::Simulation::Kind kinds[] = {
      {},
      {2},
      {1, proposed},
      {1, 0, /*has_states=*/true},
      {1, proposed, /*has_states=*/true},
      {2, 0, /*has_states=*/true},
      {.has_tier = true},
      {.has_states = true, .has_tier = true},
      {.depth = 2, .has_tier = true},
      {.depth = 2, .has_states = true, .has_tier = true},
      {.speculative_tokens = proposed, .has_tier = true},
      {.speculative_tokens = proposed, .has_draft = true},
      {.speculative_tokens = proposed, .has_states = true, .has_tier = true, .has_draft = true}};
  for (const testing::Simulation::Kind& kind : kinds) {
    const std::string replay = "seed=" + std::to_string(seed) +
                               " depth=" + std::to_string(kind.depth) +
                               " proposed=" + std::to_string(kind.speculative_tokens) +
                               (kind.has_states ? " states" : "") + (kind.has_tier ? " tier" : "") +
                               (kind.has_draft ? " draft" : "");
    testing::Simulation simulation(seed, kind);
    ASSERT_EQ(simulation.Run(300), "") << replay;
    if (&kind == kinds) outcomes = simulation.outcomes();
    for (const auto& [id, outcome] : simulation.outcomes()) {
      const auto it = outcomes.find(id);
      if (it == outcomes.end()) continue;  // cancelled or refused there, or not arrived
      ASSERT_EQ(outcome, it->second) << replay << " request=" << id;
    }
  }
}

uint64_t NumSeeds() {
  const char* const seeds = std::getenv("DIFFSERVE_SIMULATION_SEEDS");
  return seeds == nullptr ? 500 : std::strtoull(seeds, nullptr, 10);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, ::testing::Range<uint64_t>(0, NumSeeds()));

// The seeds must reach every event that the simulation is meant to test.
TEST(SimulationCoverageTest, SeedsReachPreemptionsHitsEvictionsDeferralsAndFaults) {
  uint64_t preemptions = 0, hits = 0, deferrals = 0, kv_events = 0, accepted = 0, rejected = 0,
           overtaken = 0;
  GuessCounts accepted_by_source;
  StateStore::Counters snapshots;
  testing::Simulation::Counts counts;
  testing::SimulatedReaders::Counts readers;
  uint64_t outcomes[2] = {};  // by depth
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> misses{};
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const int depth = seed % 2 == 0 ? 1 : 2;
    testing::Simulation simulation(
        seed,
        {.depth = depth, .speculative_tokens = depth == 1 ? 5 : 0, .has_states = seed % 4 >= 2});
    ASSERT_EQ(simulation.Run(200), "") << "seed=" << seed;
    outcomes[depth - 1] += simulation.outcomes().size();
    preemptions += simulation.counters().preemptions;
    hits += simulation.counters().prefix_hits;
    deferrals += simulation.counters().deferrals;
    for (size_t i = 0; i < misses.size(); ++i) misses[i] += simulation.counters().prefix_misses[i];
    counts += simulation.counts();
    accepted += simulation.proposals().accepted_tokens.total();
    for (size_t i = 0; i < accepted_by_source.by_source.size(); ++i)
      accepted_by_source.by_source[i] += simulation.proposals().accepted_tokens.by_source[i];
    rejected += simulation.proposals().proposed_tokens.total() -
                simulation.proposals().accepted_tokens.total();
    kv_events += simulation.kv_events();
    snapshots.taken += simulation.snapshots().taken;
    snapshots.resumed += simulation.snapshots().resumed;
    snapshots.evicted += simulation.snapshots().evicted;
    overtaken += simulation.start_order().overtaken();
    readers.waits += simulation.readers().waits;
    readers.overflowed += simulation.readers().overflowed;
    readers.left += simulation.readers().left;
    readers.late += simulation.readers().late;
  }
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(hits, 500u);
  EXPECT_GT(deferrals, 20u);
  EXPECT_GT(counts.corrupted, 10u);
  EXPECT_GT(counts.cancelled, 50u);
  EXPECT_GT(counts.finished, 1000u);
  EXPECT_GT(outcomes[0], 1000u);
  EXPECT_GT(outcomes[1], 1000u);
  EXPECT_GT(counts.launched_ahead, 2000u);
  EXPECT_GT(counts.results_dropped, 100u);
  EXPECT_GT(kv_events, 2000u);
  EXPECT_GT(snapshots.taken, 1000u);
  EXPECT_GT(snapshots.resumed, 100u);
  EXPECT_GT(snapshots.evicted, 200u);
  EXPECT_GT(accepted, 500u);
  EXPECT_GT(accepted_by_source.of(GuessSource::kPrompt), 0u);
  for (size_t i = 1; i < static_cast<size_t>(GuessSource::kDraft); ++i)
    EXPECT_GT(accepted_by_source.by_source[i], 50u) << kGuessSourceNames[i];
  EXPECT_GT(rejected, 400u);
  EXPECT_GT(counts.refused, 100u);
  EXPECT_GT(counts.drained, 20u);
  EXPECT_GT(counts.lost, 0u);
  EXPECT_GT(counts.overdue, 10u);
  EXPECT_GT(counts.foreseen, 10u);
  EXPECT_GT(counts.shared, 30u);
  EXPECT_GT(counts.constrained, 100u);
  EXPECT_GT(counts.refused_by_constraint, 20u);
  EXPECT_GT(overtaken, 50u);
  EXPECT_GT(readers.waits, 500u);
  EXPECT_GT(readers.overflowed, 200u);
  EXPECT_GT(readers.left, 50u);
  EXPECT_GT(readers.late, 200u);
  for (size_t i = 0; i < misses.size(); ++i) EXPECT_GT(misses[i], 0u) << "miss reason " << i;
}

TEST(SimulationCoverageTest, SeedsReachDraftsAfterHitsAndPreemptions) {
  GuessCounts proposed, accepted;
  uint64_t hits = 0, preemptions = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    testing::Simulation simulation(
        seed, {.speculative_tokens = 5, .has_states = seed % 4 == 3, .has_draft = true});
    ASSERT_EQ(simulation.Run(200), "") << "seed=" << seed;
    for (size_t i = 0; i < accepted.by_source.size(); ++i) {
      proposed.by_source[i] += simulation.proposals().proposed_tokens.by_source[i];
      accepted.by_source[i] += simulation.proposals().accepted_tokens.by_source[i];
    }
    hits += simulation.counters().prefix_hits;
    preemptions += simulation.counters().preemptions;
  }
  EXPECT_GT(accepted.of(GuessSource::kDraft), 500u);
  EXPECT_GT(proposed.of(GuessSource::kDraft) - accepted.of(GuessSource::kDraft), 200u);
  EXPECT_GT(accepted.of(GuessSource::kOutput), 50u) << "its own text still serves a sequence";
  EXPECT_GT(hits, 500u);
  EXPECT_GT(preemptions, 50u);
}

TEST(SimulationCoverageTest, SeedsReachEveryEventOfTheSecondTier) {
  testing::FakeTier::Counts tier;
  uint64_t lost = 0, slow = 0, hits = 0;
  double seconds_saved = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    testing::Simulation simulation(seed, {.has_states = seed % 2 == 1, .has_tier = true});
    ASSERT_EQ(simulation.Run(200), "") << "seed=" << seed;
    tier.loaded += simulation.tier().loaded;
    tier.damaged += simulation.tier().damaged;
    tier.cancelled += simulation.tier().cancelled;
    tier.kept += simulation.tier().kept;
    tier.cleared += simulation.tier().cleared;
    tier.snapshots_loaded += simulation.tier().snapshots_loaded;
    tier.snapshots_kept += simulation.tier().snapshots_kept;
    lost += simulation.transfers().pages_lost;
    slow += simulation.transfers().slow_loads;
    hits += simulation.counters().tier_hits;
    EXPECT_LE(simulation.counters().tier_hits, simulation.counters().prefix_hits);
    seconds_saved += simulation.stats().tier_seconds_saved;
  }
  EXPECT_GT(tier.loaded, 200u);
  EXPECT_GT(tier.damaged, 40u);
  EXPECT_GT(tier.cancelled, 5u);
  EXPECT_GT(tier.kept, 1000u);
  EXPECT_GT(tier.cleared, 50u);
  EXPECT_GT(tier.snapshots_loaded, 40u);
  EXPECT_GT(tier.snapshots_kept, 200u);
  EXPECT_GT(lost, 100u);
  EXPECT_GT(slow, 20u);
  EXPECT_GT(hits, 200u);
  // A token takes 1 to 20 us of the simulation's clock, and a turn some more.
  EXPECT_GT(seconds_saved, static_cast<double>(hits) * 1e-6);
  EXPECT_LT(seconds_saved, static_cast<double>(hits) * 200e-6);
}

}  // namespace
}  // namespace diffserve
