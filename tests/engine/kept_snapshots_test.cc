// SPDX-License-Identifier: Apache-2.0
// Which snapshots of states the second tier gets when there is room for few of them.
#include <gtest/gtest.h>

#include "engine/policy/scheduler.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/engine/idle_tier.h"

namespace diffserve {
namespace {

// Notes what it is to keep.
class NotingTier : public testing::IdleTier {
 public:
  int num_free() const override { return 100; }
  void Keep(TierEntry entry) override { kept.push_back(std::move(entry)); }

  std::vector<TierEntry> kept;
};

TEST(KeptSnapshotsTest, SnapshotAtThePromptEndIsKeptWhereThereIsRoomForOne) {
  constexpr int kPages = 8;
  EngineOptions options = testing::SmallEngine();
  options.num_pages = 64;
  options.max_num_seqs = 1;
  options.window = options.page_size;
  options.max_num_batched_tokens = 2 * options.page_size;
  options.num_state_slots = 1 + kPages;
  options.num_window_pages = static_cast<int>(options.WindowPagesMin(1)) + 1;
  options.state_snapshot_interval = options.page_size;
  NotingTier tier;
  testing::FakeExecutor executor{options};
  Scheduler scheduler{options, {}, &tier};
  scheduler.Add(testing::MakeRequest(1, kPages * options.page_size + 1, 1));
  while (scheduler.HasWork()) {
    const StepPlan plan = scheduler.Plan();
    executor.Launch(plan);
    scheduler.Commit(executor.Collect());
  }
  ASSERT_GE(scheduler.states().num_snapshots(), 2);
  scheduler.FinishTransfers();
  scheduler.CheckInvariants();
  ASSERT_EQ(tier.kept.size(), kPages + 1u);
  for (int page = 0; page < kPages; ++page)
    EXPECT_EQ(tier.kept[static_cast<size_t>(page)].kind(), TierKind::kPage);
  EXPECT_EQ(tier.kept.back().kind(), TierKind::kSnapshot);
}

}  // namespace
}  // namespace diffserve
