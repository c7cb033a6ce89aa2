// SPDX-License-Identifier: Apache-2.0
// SequencePages: which sequence holds which pages, and what the prefix cache contains. It owns the
// page pool, the prefix index, the states beside the pages and the marks of what is drafted, and
// keeps them consistent. Numbers only. Owned by the Scheduler.
//
// Two sequences never use one page for different content, because:
// - Only committed slots enter the prefix index, and steps write only after them. So a page that a
//   step in flight writes, even for a sequence that has ended, is neither indexed nor shared.
// - A page may be released while a step in flight reads or writes it (its sequence has ended, or
//   its content was indexed twice). Only a later plan can reuse it, and the device runs that plan
//   later. A sequence reads only slots that it has written itself or that were committed before it
//   found them in the index.
//
// Transfers with the second tier hold pages too, beside the sequences: HoldForTransfer and what
// follows. A running sequence never yields its pages to a transfer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/contract/options.h"
#include "engine/contract/stats.h"
#include "engine/policy/draft_pages.h"
#include "engine/policy/page_pool.h"
#include "engine/policy/prefix_index.h"
#include "engine/policy/sequence.h"
#include "engine/policy/state_store.h"
#include "engine/policy/step_plan.h"

namespace diffserve {

class SequencePages {
 public:
  using Running = std::span<const std::unique_ptr<Sequence>>;  // in order of start
  SequencePages(const EngineOptions& options, PrefixIndex::Options index_options);

  // --- In a plan ---
  void BeginPlan(Running running) { states_.BeginPlan(running); }
  // How many pages the sequence lacks for `tokens` more tokens; below 0: it has more than it needs.
  int64_t Missing(const Sequence& sequence, int tokens) const;
  bool HasFree(int64_t pages) const { return pages <= pool_.num_available(); }
  // Whether the head of the queue may run now, beside the running sequences and the transfers.
  // `hits`: of FindPrefix.
  bool HasRoomFor(const Sequence& head, const std::vector<int32_t>& hits, Running running) const;
  // The longest run of indexed pages that the sequence may continue from.
  std::vector<int32_t> FindPrefix(Sequence& sequence) const;
  // Whether the head should wait for a running sequence that computes the same prefix.
  bool PrefixIsUnderWay(Sequence& head, int num_hits, int tokens, Running running) const;
  // Gives a sequence that starts its prefix, and a state.
  void Start(Sequence& sequence, const std::vector<int32_t>& hits);
  // Plans as many of `tokens` as pages allow; returns how many.
  int Grow(Sequence& sequence, int tokens);
  // The same for proposed tokens, as many as can also be taken back.
  int GrowProposed(Sequence& sequence, int tokens);
  // Releases the pages after the last computed or planned token. REQUIRES: they are not indexed.
  void Trim(Sequence& sequence);
  // Releases the sequence's pages and state.
  void Release(Sequence& sequence);
  // Fills in the pages and states of the sequence's part of a step. Called once per sequence and
  // plan.
  void Describe(Sequence& sequence, PlannedSequence& planned);

  // --- When a step is committed ---
  // The last `rejected` planned tokens were wrong: they count as not planned.
  void TakeBack(Sequence& sequence, int rejected);
  // Indexes the full pages up to the committed tokens, with their snapshots.
  void Commit(Sequence& sequence);

  // --- Prefix cache ---
  bool TakesFromCache(const Sequence& sequence) const;
  // The leading indexed pages that the sequence may take, also those without a usable snapshot.
  std::vector<int32_t> IndexedPages(Sequence& sequence) const;
  // The reason why FindPrefix gave nothing.
  MissReason WhyMissing(Sequence& sequence) const;
  // Removes the sequence's pages and all pages after them from the cache, because their K and V
  // cannot be trusted. False: none of them is there.
  bool ForgetChain(const Sequence& sequence);
  void ClearCache() { ForgetPages(index_.Clear()); }
  std::vector<KvEvent> TakeKvEvents() { return index_.TakeEvents(); }

  // --- For transfers ---
  // How many more pages transfers may hold.
  int64_t RoomForTransfers(Running running) const;
  void HoldForTransfer(int32_t page);
  int32_t TakeForTransfer();  // REQUIRES: a page is available
  void ReleaseOfTransfer(int32_t page);
  // Indexes `own`, the page that has the tokens of the sequence's page number `page`. If another
  // page has been indexed for them, `own` is released and becomes that page, whose bits are the
  // same. False: the index does not take it.
  bool Index(Sequence& sequence, int page, int32_t parent, int32_t& own);
  int64_t num_held_by_transfers() const { return num_held_by_transfers_; }

  const PagePool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  const StateStore& states() const { return states_; }
  StateStore& states() { return states_; }
  DraftPages& draft_pages() { return draft_pages_; }
  // `transfers`: the pages that they hold, as often as they do; and their snapshots.
  void CheckInvariants(Running running, std::span<const int32_t> transfers,
                       std::span<const SnapshotMemory* const> snapshots) const;

 private:
  int64_t MaxPages(const Sequence& sequence) const;        // that the sequence can ever hold
  int32_t Allocate();                                      // REQUIRES: one is available
  bool IsKnown(const Sequence& sequence, int page) const;  // whether all tokens of the full page
                                                           // are known
  PrefixIndex::Key KeyOf(Sequence& sequence, int page, int32_t parent) const;
  void ForgetPages(const std::vector<int32_t>& pages);
  void CheckSequence(const Sequence& sequence) const;

  const EngineOptions options_;
  PagePool pool_;
  PrefixIndex index_;
  StateStore states_;
  DraftPages draft_pages_;
  int64_t num_held_by_transfers_ = 0;  // counted once per holder
};

}  // namespace diffserve
