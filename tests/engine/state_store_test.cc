// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/state_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

namespace diffserve {
namespace {

constexpr int kWindowPageSize = 4;

// Sequences that compute pages of their own prompts, through the calls that the scheduler makes.
// There are as many snapshot slots as sequences may run.
class StateStoreTest : public ::testing::Test {
 protected:
  explicit StateStoreTest(int max_num_seqs = 2) : store_(MakeOptions(max_num_seqs)) {}

  static EngineOptions MakeOptions(int max_num_seqs) {
    EngineOptions options;
    options.page_size = kWindowPageSize;
    options.num_pages = 64;
    options.max_num_seqs = max_num_seqs;
    options.max_num_batched_tokens = 16;
    options.num_state_slots = 2 * max_num_seqs;
    options.window = 5;
    options.num_window_pages = static_cast<int>(options.WindowPagesMin(options.max_num_seqs)) + 4;
    options.state_snapshot_interval = kWindowPageSize;
    return options;
  }

  Sequence& Start(int prompt_pages, int32_t snapshot_page = -1, int computed = 0) {
    Request request;
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_pages * kWindowPageSize + 1));
    std::iota(prompt.begin(), prompt.end(), 100 * static_cast<int32_t>(running_.size()));
    request.prompt = std::move(prompt);
    request.max_tokens = 1;
    running_.push_back(std::make_unique<Sequence>(std::move(request), kWindowPageSize));
    Sequence& sequence = *running_.back();
    sequence.num_computed = sequence.num_committed = computed;
    store_.Begin(sequence, snapshot_page);
    return sequence;
  }

  StateSlotUse Plan(Sequence& sequence, int tokens) {
    sequence.num_planned = tokens;
    const StateSlotUse use = store_.PlanStep(sequence);
    sequence.num_computed += std::exchange(sequence.num_planned, 0);
    return use;
  }

  // From here on its pages are indexed.
  void Commit(Sequence& sequence) {
    for (; (sequence.num_indexed_pages + 1) * kWindowPageSize <= sequence.num_computed;
         ++sequence.num_indexed_pages) {
      const auto tokens = sequence.PageTokens(sequence.num_indexed_pages, kWindowPageSize);
      const int32_t parent = sequence.pages.empty() ? -1 : sequence.pages.back();
      hash_ = index_.ChainHash(parent < 0 ? index_.RootHash("") : hash_, tokens);
      sequence.pages.push_back(index_.Insert({parent, hash_, tokens, ""}, next_page_++));
    }
    sequence.num_committed = sequence.num_computed;
    store_.Commit(sequence, index_);
    store_.CheckInvariants(running_, index_);
  }

  // Runs a prompt that ends with a snapshot, and returns its page.
  int32_t RunPrompt(int prompt_pages) {
    store_.BeginPlan(running_);
    Sequence& sequence = Start(prompt_pages);
    Plan(sequence, prompt_pages * kWindowPageSize);
    Commit(sequence);
    pages_ = sequence.pages;
    End();
    return pages_.back();
  }

  // Starts a longer prompt with the same beginning, from the snapshot at the end of `pages`.
  Sequence& Resume(int prompt_pages, const std::vector<int32_t>& pages) {
    const int num_pages = static_cast<int>(pages.size());
    Sequence& sequence = Start(prompt_pages, pages.back(), num_pages * kWindowPageSize);
    sequence.pages = pages;
    sequence.num_indexed_pages = num_pages;
    return sequence;
  }

  void End() {
    store_.End(*running_.back());
    running_.pop_back();
  }

  std::vector<std::unique_ptr<Sequence>> running_;
  StateStore store_;
  PrefixIndex index_{{.num_pages = 64, .page_size = kWindowPageSize, .hash_key = 1}};
  uint64_t hash_ = 0;
  int32_t next_page_ = 0;
  std::vector<int32_t> pages_;  // of the last RunPrompt
};

class OneSequenceTest : public StateStoreTest {
 protected:
  OneSequenceTest() : StateStoreTest(1) {}
};

TEST_F(StateStoreTest, SnapshotDroppedInItsOwnPlanKeepsItsSlotUntilTheNextPlan) {
  store_.BeginPlan(running_);
  Sequence& sequence = Start(2);
  const StateSlotUse use = Plan(sequence, kWindowPageSize);
  ASSERT_EQ(use.snapshots.size(), 1u);
  EXPECT_EQ(store_.num_free_slots(), 2);
  End();  // cancelled while the step that writes the snapshot may be in flight
  EXPECT_EQ(store_.num_snapshots(), 0);
  EXPECT_EQ(store_.num_free_slots(), 3);
  store_.CheckInvariants(running_, index_);
  store_.BeginPlan(running_);
  EXPECT_EQ(store_.num_free_slots(), 4);
}

TEST_F(StateStoreTest, SequenceContinuesFromTheSnapshotOfItsStep) {
  store_.BeginPlan(running_);
  Sequence& sequence = Start(2);
  const StateSlotUse first = Plan(sequence, kWindowPageSize);
  ASSERT_EQ(first.snapshots.size(), 1u);
  EXPECT_EQ(first.snapshots[0].num_tokens, kWindowPageSize);
  Commit(sequence);
  store_.BeginPlan(running_);
  const StateSlotUse second = Plan(sequence, 1);
  EXPECT_EQ(second.from, first.snapshots[0].slot);
  EXPECT_EQ(second.to, first.to);
  EXPECT_TRUE(second.snapshots.empty());
}

TEST_F(StateStoreTest, EvictsTheSnapshotThatSavesTheFewestTokens) {
  store_.BeginPlan(running_);
  Sequence& large = Start(4);
  Plan(large, 2);
  large.state.last_snapshot = -8 * kWindowPageSize;  // simulates a long distance without a snapshot
  Plan(large, 2);
  Commit(large);
  store_.BeginPlan(running_);
  Plan(large, kWindowPageSize);
  Commit(large);
  ASSERT_EQ(store_.num_snapshots(), 2);
  EXPECT_TRUE(store_.HasSnapshot(large.pages[0]));
  EXPECT_TRUE(store_.HasSnapshot(large.pages[1]));
  store_.BeginPlan(running_);
  Plan(large, kWindowPageSize);
  Commit(large);
  EXPECT_EQ(store_.num_snapshots(), 2);
  EXPECT_TRUE(store_.HasSnapshot(large.pages[0]));
  EXPECT_FALSE(store_.HasSnapshot(large.pages[1])) << "it saved four tokens";
  EXPECT_TRUE(store_.HasSnapshot(large.pages[2]));
  EXPECT_EQ(store_.counters().evicted, 1u);
}

TEST_F(StateStoreTest, ResumedSequenceReadsTheSnapshotAndWritesItsOwnSlot) {
  store_.BeginPlan(running_);
  Sequence& sequence = Start(3);
  Plan(sequence, 2 * kWindowPageSize);
  Commit(sequence);
  const int32_t page = sequence.pages[1];
  ASSERT_TRUE(store_.HasSnapshot(page));
  End();
  store_.BeginPlan(running_);
  Sequence& resumed = Start(3, page, 2 * kWindowPageSize);
  EXPECT_EQ(store_.counters().resumed, 1u);
  EXPECT_EQ(resumed.state.first_window_page, 1);  // a window of 5 begins in the second page
  EXPECT_GE(resumed.state.window_pages[1], 0);
  const StateSlotUse use = Plan(resumed, 1);
  EXPECT_NE(use.from, use.to);
  const int free = store_.num_free_slots();
  store_.Forget(page);  // evicted from the prefix index while the step reads it
  EXPECT_EQ(store_.num_free_slots(), free);
  store_.BeginPlan(running_);
  EXPECT_EQ(store_.num_free_slots(), free + 1);
  store_.CheckInvariants(running_, index_);
}

TEST_F(OneSequenceTest, KeepsThePromptEndSnapshotWhenSlotsAreShort) {
  const int32_t page = RunPrompt(4);
  EXPECT_EQ(store_.num_snapshots(), 1);
  EXPECT_EQ(page, pages_[3]);
  EXPECT_TRUE(store_.HasSnapshot(page));
}

TEST_F(OneSequenceTest, StepOverwritesTheSnapshotThatItReadWhenNoSlotIsFree) {
  RunPrompt(2);
  for (int turn = 0; turn < 3; ++turn) {
    store_.BeginPlan(running_);
    const std::vector<int32_t> pages = pages_;
    Sequence& sequence = Resume(2 + 2 * (turn + 1), pages);
    const StateSlotUse use = Plan(sequence, 2 * kWindowPageSize);
    ASSERT_EQ(use.snapshots.size(), 1u) << turn;
    EXPECT_EQ(use.snapshots[0].num_tokens, 2 * kWindowPageSize);
    EXPECT_EQ(use.snapshots[0].slot, use.from);
    Commit(sequence);
    EXPECT_FALSE(store_.HasSnapshot(pages.back()));
    EXPECT_TRUE(store_.HasSnapshot(sequence.pages.back()));
    pages_ = sequence.pages;
    End();
    EXPECT_EQ(store_.counters().evicted, static_cast<uint64_t>(turn) + 1);
  }
  store_.BeginPlan(running_);
  EXPECT_EQ(store_.num_free_slots(), 1);
}

TEST_F(StateStoreTest, SequencesThatResumeInOnePlanEachKeepASnapshot) {
  RunPrompt(1);
  const std::vector<int32_t> short_pages = pages_;
  RunPrompt(2);  // its first page is the same
  const std::vector<int32_t> long_pages = pages_;
  ASSERT_EQ(store_.num_snapshots(), 2);
  const uint64_t evicted = store_.counters().evicted;
  store_.BeginPlan(running_);
  Sequence& first = Resume(3, long_pages);
  Sequence& second = Resume(3, short_pages);
  EXPECT_EQ(Plan(first, kWindowPageSize).snapshots.size(), 1u);
  EXPECT_EQ(Plan(second, kWindowPageSize).snapshots.size(), 1u);
  EXPECT_EQ(store_.num_snapshots(), 2);
  EXPECT_EQ(store_.counters().evicted, evicted + 2);
  store_.CheckInvariants(running_, index_);
}

TEST_F(StateStoreTest, SnapshotReadByTwoSequencesIsNotEvicted) {
  RunPrompt(1);
  RunPrompt(2);
  const std::vector<int32_t> pages = pages_;
  ASSERT_EQ(store_.num_snapshots(), 2);
  const uint64_t evicted = store_.counters().evicted;
  store_.BeginPlan(running_);
  Sequence& first = Resume(3, pages);
  Sequence& second = Resume(3, pages);
  EXPECT_EQ(Plan(first, kWindowPageSize).snapshots.size(), 1u);
  EXPECT_EQ(Plan(second, kWindowPageSize).snapshots.size(), 0u)
      << "no snapshot that may be dropped makes room";
  EXPECT_TRUE(store_.HasSnapshot(pages.back()));
  EXPECT_EQ(store_.counters().evicted, evicted + 1);
  store_.CheckInvariants(running_, index_);
}

TEST_F(StateStoreTest, SnapshotThatIsHeldKeepsItsMemoryAfterItIsDropped) {
  const int32_t page = RunPrompt(2);
  store_.BeginPlan(running_);
  const std::optional<SnapshotMemory> held = store_.Hold(page);
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(held->window_pages.size(), 1u) << "a token after 8 sees one page of a window of 5";
  const int free_slots = store_.num_free_slots(), free_pages = store_.num_free_window_pages();
  store_.Forget(page);
  EXPECT_EQ(store_.num_free_slots(), free_slots);
  EXPECT_EQ(store_.num_free_window_pages(), free_pages);
  const SnapshotMemory* const transfers[] = {&*held};
  store_.CheckInvariants(running_, index_, transfers);
  store_.Release(*held);
  EXPECT_EQ(store_.num_free_slots(), free_slots + 1);
  EXPECT_EQ(store_.num_free_window_pages(), free_pages + 1);
  store_.CheckInvariants(running_, index_);
}

TEST_F(StateStoreTest, SequenceResumesFromAnAdoptedSnapshot) {
  const int32_t page = RunPrompt(2);
  store_.Forget(page);
  store_.BeginPlan(running_);
  const std::optional<SnapshotMemory> filled = store_.Allocate(2 * kWindowPageSize);
  ASSERT_TRUE(filled.has_value());
  EXPECT_FALSE(store_.HasSnapshot(page));
  store_.Adopt(*filled, page, 2 * kWindowPageSize);
  EXPECT_TRUE(store_.HasSnapshot(page));
  store_.BeginPlan(running_);
  Sequence& resumed = Resume(3, pages_);
  EXPECT_EQ(resumed.state.from, filled->slot);
  EXPECT_EQ(resumed.state.window_pages.back(), filled->window_pages.back());
  store_.CheckInvariants(running_, index_);
}

TEST_F(StateStoreTest, AdoptedSnapshotDoesNotReplaceOneThatIsThere) {
  const int32_t page = RunPrompt(2);
  store_.BeginPlan(running_);
  const std::optional<SnapshotMemory> filled = store_.Allocate(2 * kWindowPageSize);
  ASSERT_EQ(store_.num_snapshots(), 1) << "that of the first page made room";
  store_.Adopt(*filled, page, 2 * kWindowPageSize);
  EXPECT_EQ(store_.num_snapshots(), 1);
  EXPECT_EQ(store_.num_free_slots(), 3);
  store_.CheckInvariants(running_, index_);
}

TEST_F(StateStoreTest, TransfersHoldOnlyWhatRunningSequencesCannotNeed) {
  store_.BeginPlan(running_);
  std::vector<SnapshotMemory> held;
  while (std::optional<SnapshotMemory> memory = store_.Allocate(2 * kWindowPageSize))
    held.push_back(*std::move(memory));
  EXPECT_EQ(held.size(), 2u) << "slots beyond those of two running sequences";
  EXPECT_GE(store_.num_free_window_pages(), 4 * 3);
  for (const SnapshotMemory& memory : held) store_.Release(memory);
  store_.CheckInvariants(running_, index_);
}

}  // namespace
}  // namespace diffserve
