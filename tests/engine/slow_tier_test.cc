// SPDX-License-Identifier: Apache-2.0
// A second tier that is slow: loads have a deadline.
#include <gtest/gtest.h>

#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/engine/idle_tier.h"

namespace diffserve {
namespace {

// Has every page, and loads none until the test says so.
class SilentTier : public testing::IdleTier {
 public:
  bool Contains(const TierKey&, TierKind) override { return true; }
  void Load(uint64_t load, std::vector<TierEntry>) override { last_load = load; }
  void Cancel(uint64_t load) override { last_cancelled = load; }
  std::vector<Done> TakeDone() override { return std::exchange(done, {}); }

  uint64_t last_load = 0, last_cancelled = 0;
  std::vector<Done> done;
};

class SlowTierTest : public ::testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options = testing::SmallEngine();
    options.num_pages = 64;
    return options;
  }
  // The number of planned tokens.
  int PlanAt(double seconds, double token_seconds) {
    const StepPlan plan = scheduler_.Plan({.now = seconds, .token_seconds = token_seconds});
    const int planned = plan.num_tokens();
    if (planned > 0) {
      executor_.Launch(plan);
      scheduler_.Commit(executor_.Collect());
    }
    scheduler_.CheckInvariants();
    return planned;
  }

  SilentTier tier_;
  testing::FakeExecutor executor_{Options()};
  Scheduler scheduler_{Options(), {}, &tier_};
};

TEST_F(SlowTierTest, LoadMayTakeAsLongAsComputing) {
  scheduler_.Add(testing::MakeRequest(1, 50, 2));
  EXPECT_EQ(PlanAt(1, 0.125), 0);
  EXPECT_EQ(scheduler_.transfers().num_loads(), 1);
  EXPECT_EQ(scheduler_.transfers().NextDeadline(), 1 + 48 * 0.125);
  scheduler_.GiveUpSlowLoads(6.999);
  EXPECT_EQ(scheduler_.transfers().LoadingRequests().size(), 1u);
  scheduler_.GiveUpSlowLoads(7);
  EXPECT_TRUE(scheduler_.transfers().LoadingRequests().empty());
  EXPECT_EQ(tier_.last_cancelled, tier_.last_load);
  EXPECT_EQ(scheduler_.transfers().NextDeadline(), std::nullopt);
  EXPECT_EQ(scheduler_.transfers().counters().slow_loads, 1u);
  EXPECT_EQ(PlanAt(7, 0.125), 16);
}

TEST_F(SlowTierTest, ShortAndUnmeasuredLoadsHaveTheirTimeToo) {
  scheduler_.Add(testing::MakeRequest(1, 50, 2));
  EXPECT_EQ(PlanAt(0, 0.001), 0);
  EXPECT_EQ(scheduler_.transfers().NextDeadline(), 1);
  scheduler_.End(1, FinishReason::kCancelled, Status());
  EXPECT_EQ(scheduler_.transfers().NextDeadline(), std::nullopt);
  scheduler_.Add(testing::MakeRequest(2, 50, 2, 100));
  EXPECT_EQ(PlanAt(0, 0), 0);
  EXPECT_EQ(scheduler_.transfers().NextDeadline(), 30);
}

TEST_F(SlowTierTest, NothingIsLoadedUntilTheTierLetsGoOfASlowLoad) {
  scheduler_.Add(testing::MakeRequest(1, 50, 2));
  PlanAt(0, 0.1);
  scheduler_.GiveUpSlowLoads(60);
  scheduler_.Add(testing::MakeRequest(2, 50, 2, 100));
  PlanAt(60, 0.1);
  EXPECT_EQ(tier_.last_load, 1u);
  EXPECT_EQ(scheduler_.running().size(), 2u);
  tier_.done.push_back({.load = 1, .num_loaded = 0});
  scheduler_.FinishTransfers();
  EXPECT_EQ(scheduler_.transfers().num_loads(), 0);
  scheduler_.Add(testing::MakeRequest(3, 50, 2, 200));
  PlanAt(60, 0.1);
  EXPECT_EQ(tier_.last_load, 2u);
}

}  // namespace
}  // namespace diffserve
