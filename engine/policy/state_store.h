// SPDX-License-Identifier: Apache-2.0
// StateStore: the memory of sequences outside their token pages. It serves models whose layers keep
// a state of fixed size or see a window of the past. It hands out slots for states, and pages for
// the layers with a window. A running sequence has its own slot and the window pages that its next
// tokens see. A snapshot is a copy of a state at some position, with the window pages before it. It
// belongs to the page of the prefix index that ends at that position, and a sequence that finds the
// page resumes from the snapshot. Numbers only. Owned by the Scheduler; without slots in the
// options it holds nothing.
//
// Eviction of snapshots follows GreedyDual (Young, "The k-server dual and loose competitiveness for
// paging", 1994). A snapshot's worth is the number of tokens that it saves plus the worth of the
// snapshot dropped last, so that old snapshots lose against new ones. When a slot or a page is
// short, the snapshot with the lowest worth is dropped. Its slot must become usable at once: either
// no other sequence is going to read it, or only the step that takes the new snapshot reads it and
// then overwrites it.
//
// A slot or page is never reused while its old owner needs it. Only plans hand them out, and the
// device runs plans in order, so the new owner's step runs after the old owner's. Within one plan
// there is no order. Slots that the plan's sequences read, and slots of snapshots that it takes and
// drops again, therefore become free with the next plan. Window pages become free at once, because
// a step reads only those in its tables.
//
// A step that verifies proposed tokens keeps the state before each of them in a slot. If a token
// was wrong, the sequence continues from the slot before it. Otherwise its own slot has its state.
//
// The second tier of the prefix cache copies snapshots and fills new ones. Meanwhile their memory
// is held, also if the snapshot is dropped. That takes only what running sequences can never need.
//
// Invariants: each slot and window page has as many holders as running sequences (with the rows
// that they verify), snapshots, transfers and (slots only) readers in the last plan list it. A
// snapshot belongs to an indexed page, or its step is in flight. EngineOptions::num_window_pages
// are enough for all running sequences, so no sequence is preempted for window pages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/contract/options.h"
#include "engine/policy/page_pool.h"
#include "engine/policy/prefix_index.h"
#include "engine/policy/sequence.h"
#include "kernels/mamba/state_slot_use.h"

namespace diffserve {

class StateStore {
 public:
  using Running = std::span<const std::unique_ptr<Sequence>>;
  struct Counters {
    uint64_t taken = 0, resumed = 0, evicted = 0;  // snapshots
  };
  explicit StateStore(const EngineOptions& options);
  // Whether sequences keep nothing here. If false, pages without a snapshot are not a usable
  // prefix.
  bool empty() const { return !slots_.has_value(); }

  // Called at the start of a plan. Frees the slots that the previous plan read, and the window
  // pages that no window sees any more.
  void BeginPlan(Running running);
  // Starts a sequence, from the snapshot of the indexed page if there is one.
  void Begin(Sequence& sequence, int32_t page);
  // Releases everything that the sequence holds here.
  void End(Sequence& sequence);
  // Takes slots for the verification of up to `count` proposed tokens, dropping snapshots if
  // needed, and returns for how many there are. Called in a plan, before any PlanStep.
  int TakeRows(Sequence& sequence, int count);
  // Releases those of all but the first `count`.
  void TrimRows(Sequence& sequence, int count);
  // Lets the sequence continue before the last `rejected` proposed tokens of the step, which
  // num_computed does not count any more.
  void TakeBack(Sequence& sequence, int rejected);
  // Returns how the step uses the sequence's state, and allocates window pages up to its planned
  // tokens. Called once per sequence and plan.
  StateSlotUse PlanStep(Sequence& sequence);
  // Called when its step is committed. Attaches the snapshots up to there to the sequence's pages
  // if those are indexed.
  void Commit(Sequence& sequence, const PrefixIndex& index);
  // Drops the snapshot of a page that leaves the prefix index.
  void Forget(int32_t page);

  bool HasSnapshot(int32_t page) const {
    return !empty() && by_page_[static_cast<size_t>(page)] >= 0;
  }
  // The first position after `after` at which the sequence's state is kept; INT_MAX if there is
  // none.
  int NextSnapshot(const Sequence& sequence, int after) const;

  // Holds the memory of the page's snapshot until Release. nullopt: there is no room for it. For a
  // committed snapshot only.
  std::optional<SnapshotMemory> Hold(int32_t page);
  // Holds memory for a snapshot at `position`, whose content the caller provides, until Adopt or
  // Release. Called in a plan, before any PlanStep. nullopt: there is no room for it.
  std::optional<SnapshotMemory> Allocate(int position);
  // Makes it the snapshot of an indexed page, unless that has one. `saves`: the number of tokens
  // that it saves.
  void Adopt(SnapshotMemory memory, int32_t page, int saves);
  void Release(const SnapshotMemory& memory);

  int num_slots() const { return slots_ ? slots_->num_pages() : 0; }
  int num_free_slots() const { return slots_ ? slots_->num_free() : 0; }
  int num_snapshots() const { return num_snapshots_; }
  int num_window_pages() const { return window_pages_ ? window_pages_->num_pages() : 0; }
  int num_free_window_pages() const { return window_pages_ ? window_pages_->num_free() : 0; }
  int NumWindowPagesOf(Running running) const;
  const Counters& counters() const { return counters_; }
  // `transfers`: what Hold and Allocate have given.
  void CheckInvariants(Running running, const PrefixIndex& index,
                       std::span<const SnapshotMemory* const> transfers = {}) const;

 private:
  struct Snapshot {
    uint64_t id = 0;    // 0: this slot holds no snapshot
    int32_t page = -1;  // the indexed page that it belongs to; -1: its step is in flight
    bool in_this_plan = false;
    int64_t saves = 0;  // tokens
    int64_t worth = 0;
    std::vector<int32_t> window_pages = {};
  };

  int FirstSeen(int position) const;  // index of the first window page that a token at `position`
                                      // sees
  int PromptEnd(const Sequence& sequence) const;
  bool HasRoomToHold(int64_t window_pages) const;
  void Trim(Sequence& sequence);
  int32_t TakeWindowPage();
  int32_t TakeSnapshotSlot(int32_t read);
  void TakeSnapshots(Sequence& sequence, StateSlotUse& use);
  void AddRows(Sequence& sequence, StateSlotUse& use);
  void Keep(Sequence& sequence, int position, int32_t slot);
  template <typename Filter>
  Snapshot* MinWorth(const Filter& may_go);
  void Evict(Snapshot& snapshot);
  void Drop(Snapshot& snapshot);

  const EngineOptions options_;
  std::optional<PagePool> slots_, window_pages_;
  std::vector<Snapshot> snapshots_;    // by slot
  std::vector<int32_t> by_page_;       // the slot of an indexed page's snapshot, or -1
  std::vector<int32_t> read_by_plan_;  // slots that the last plan reads and then releases
  int num_running_ = 0, num_snapshots_ = 0;
  int64_t num_held_window_pages_ = 0;  // by transfers
  uint64_t last_id_ = 0;
  int64_t worth_of_dropped_ = 0;
  Counters counters_;
};

}  // namespace diffserve
