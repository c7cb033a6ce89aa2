// StateStore: what sequences keep beside the pages of their tokens, where a model's layers remember
// the past in a state of fixed size or see a window of it: slots for states and pages of the layers
// with a window. A running sequence has a slot of its own and the window pages that its next tokens
// see. A snapshot is a state kept on the way, with the window pages behind it; it hangs on the page
// of the prefix index that ends there, and a sequence that finds it goes on from it. Numbers only.
// Owned by the Scheduler; without slots in the options it holds nothing.
//
// Snapshots are kept by value (GreedyDual: Young, "The k-server dual and loose competitiveness for
// paging", 1994): one is worth the tokens that it saves, counted from the worth of what was dropped
// last, so that age is held against it; when a slot or a page is short, what is worth least goes. A
// slot goes only if that makes room at once: nobody else is to read it, or the step that takes the
// new snapshot alone, which then overwrites what it has read.
//
// Why no slot and no page is in two hands: they are given out by plans alone, and the device runs
// plans in order, so its next owner comes behind whoever gave it up. Within a plan there is no
// order: slots that its sequences read, and those of snapshots that it takes and drops again, are
// free with the next plan (window pages at once: a step reads none but those in its tables).
//
// Invariants: each slot and window page has as many holders as there are running sequences,
// snapshots and, of slots, readers in the last plan that list it; a snapshot hangs on an indexed
// page, or its step is under way. Options::num_window_pages are enough for what runs, so nobody is
// preempted for them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/options.h"
#include "engine/page_pool.h"
#include "engine/prefix_index.h"
#include "engine/sequence.h"
#include "kernels/mamba/state_slot_use.h"

namespace diffserve {

class StateStore {
 public:
  using Running = std::span<const std::unique_ptr<Sequence>>;
  struct Counters {
    uint64_t taken = 0, resumed = 0, evicted = 0;  // snapshots
  };
  explicit StateStore(const EngineOptions& options);
  // Whether a sequence has anything here, so that pages alone are no prefix.
  bool empty() const { return !slots_.has_value(); }

  // At the start of a plan: what the one before read is free, and so is what no window sees.
  void BeginPlan(Running running);
  // The sequence runs, from the snapshot of the indexed page, if there is one.
  void Begin(Sequence& sequence, int32_t page);
  // It runs no longer.
  void End(Sequence& sequence);
  // What a step that computes its planned tokens does with its state; its window pages reach as far
  // as those. Once for each sequence in a plan.
  StateSlotUse PlanStep(Sequence& sequence);
  // Its step is committed: snapshots up to there hang on its pages, which are indexed if they can
  // be.
  void Commit(Sequence& sequence, const PrefixIndex& index);
  // The page leaves the prefix index.
  void Forget(int32_t page);

  bool HasSnapshot(int32_t page) const { return by_page_[static_cast<size_t>(page)] >= 0; }
  // The first position behind `after` at which the sequence's state is kept; none: the largest int.
  int NextSnapshot(const Sequence& sequence, int after) const;

  int num_slots() const { return slots_ ? slots_->num_pages() : 0; }
  int num_free_slots() const { return slots_ ? slots_->num_free() : 0; }
  int num_snapshots() const { return num_snapshots_; }
  int num_window_pages() const { return window_pages_ ? window_pages_->num_pages() : 0; }
  int num_free_window_pages() const { return window_pages_ ? window_pages_->num_free() : 0; }
  int NumWindowPagesOf(Running running) const;
  const Counters& counters() const { return counters_; }
  void CheckInvariants(Running running, const PrefixIndex& index) const;

 private:
  struct Snapshot {
    uint64_t id = 0;    // 0: there is none in this slot
    int32_t page = -1;  // that it hangs on; -1: its step is under way
    bool in_this_plan = false;
    int64_t saves = 0;  // tokens
    int64_t worth = 0;
    std::vector<int32_t> window_pages = {};
  };

  int FirstSeen(int position) const;  // window page by a token at that position
  int PromptEnd(const Sequence& sequence) const;
  void Trim(Sequence& sequence);
  int32_t TakeWindowPage();
  int32_t TakeSnapshotSlot(int32_t read);
  void TakeSnapshots(Sequence& sequence, StateSlotUse& use);
  void Keep(Sequence& sequence, int position, int32_t slot);
  template <typename Filter>
  Snapshot* LeastWorth(const Filter& may_go);
  void Evict(Snapshot& snapshot);
  void Drop(Snapshot& snapshot);

  const EngineOptions options_;
  std::optional<PagePool> slots_, window_pages_;
  std::vector<Snapshot> snapshots_;    // by slot
  std::vector<int32_t> by_page_;       // the slot of an indexed page's snapshot, or -1
  std::vector<int32_t> read_by_plan_;  // slots that the last plan lets go of
  int num_running_ = 0, num_snapshots_ = 0;
  uint64_t last_id_ = 0;
  int64_t worth_of_dropped_ = 0;
  Counters counters_;
};

}  // namespace diffserve
