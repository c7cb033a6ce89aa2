// SPDX-License-Identifier: Apache-2.0
// TierTransfers: which pages and snapshots are loaded from the second tier of the prefix cache, and
// which are kept in it. It holds what is being copied. Without a tier it does nothing. Numbers
// only. Owned by the Scheduler.
//
// A load makes more of a waiting sequence's prefix usable. Meanwhile the sequence is here, and
// neither runs nor waits. A load may take as long as computing its tokens would; a slower one is
// given up, and nothing more is loaded until the tier has released its pages.
// A chain of pages is offered when a sequence releases it. One chain at a time is kept: its pages
// are held, because a page must not leave the index before those after it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/contract/page_tier.h"
#include "engine/policy/sequence_pages.h"
#include "engine/policy/step_costs.h"

namespace diffserve {

class TierTransfers {
 public:
  using Running = SequencePages::Running;
  using Sequences = std::vector<std::unique_ptr<Sequence>>;
  struct Counters {
    uint64_t tokens_loaded = 0;  // that loads have made usable
    uint64_t pages_kept = 0;
    uint64_t pages_lost = 0;  // that left the cache before the tier could keep them
    uint64_t slow_loads = 0;  // given up
  };
  // `tier` may be nullptr; it outlives this object, as does `pages`.
  TierTransfers(const EngineOptions& options, PageTier* tier, SequencePages& pages);

  // --- Loads ---
  // Loads more of the sequence's prefix, of which `num_hits` pages are usable in memory. Then
  // take() gives the sequence. False: the tier has no more of it, or there is no room for it.
  bool TryLoad(Sequence& next, int num_hits, Running running, const StepCosts& costs,
               const std::function<std::unique_ptr<Sequence>()>& take);
  // Takes what the tier has done. Returns the sequences whose loads are done; they wait again.
  Sequences Finish();
  // Returns the sequences of loads that are too slow; they wait again, and are computed.
  Sequences GiveUpSlow(double now);
  // When the next load is too slow; nullopt: none is under way.
  std::optional<double> NextDeadline() const;
  // The request of a load has ended. False: it has none.
  bool End(const Sequence& sequence);
  // Requests whose prefix is being loaded, ascending.
  std::vector<RequestId> LoadingRequests() const;
  int num_loads() const { return static_cast<int>(loads_.size()); }

  // --- Keeping ---
  // Remembers the sequence's indexed pages, which are about to be released.
  void Offer(Sequence& sequence);
  bool HasOffers() const { return !offered_.empty(); }
  bool HoldsPages() const { return pages_.num_held_by_transfers() > 0; }
  // Gives the tier what it takes of the offered pages. `starts_chains`: false while a sequence
  // waits for pages.
  void Keep(Running running, bool starts_chains);
  // A sequence needs the pages of the chain: those that the tier does not copy yet are released.
  void StopKeeping();
  // Pages that nothing holds but the chain that is being kept.
  int NumPagesOnlyKept() const;

  // The sequence's content cannot be trusted.
  void Forget(Sequence& sequence);
  // Without the second tier, pages on their way to it get there if they are held already.
  void Reset(CacheReset which);

  const Counters& counters() const { return counters_; }
  std::vector<int32_t> HeldPages() const;  // as often as they are held
  std::vector<const SnapshotMemory*> HeldSnapshots() const;
  void CheckInvariants() const;

 private:
  struct Load {
    std::unique_ptr<Sequence> sequence = nullptr;  // nullptr: it has ended
    std::vector<int32_t> held = {};  // pages of its prefix: those found in the index, then the new
                                     // ones
    int num_hits = 0;
    std::optional<SnapshotMemory> snapshot = {};  // for the one at the end of the last page
    int begin = 0;                                // tokens that are usable without it
    bool is_stale = false;                        // a reset has forgotten pages of it since
    double deadline = 0;
    bool is_given_up = false;
  };
  struct OfferedChain {
    std::vector<TierEntry> pages = {};   // from the first of a chain on
    std::vector<uint64_t> serials = {};  // of the index, which tell a page's contents apart
  };
  struct KeptChain {
    std::vector<TierEntry> entries = {};  // pages, each before its snapshot; held
    size_t num_given = 0;                 // leading entries that the tier has, or copies
    size_t num_done = 0;                  // that it has
  };

  const TierKey& KeyOf(Sequence& sequence, int page) const;
  TierEntry EntryOf(Sequence& sequence, int page) const;
  std::vector<TierEntry> Find(Sequence& next, std::vector<int32_t>& pages, int num_hits,
                              Running running) const;
  int IndexLoaded(Load& load, int num_loaded);
  int AdoptSnapshot(Load& load, int num_loaded, int end);
  std::unique_ptr<Sequence> FinishLoad(uint64_t id, int num_loaded);
  void DropOffer();
  void StartKeeping(Running running);
  size_t NumStillIndexed(const OfferedChain& chain) const;
  std::vector<TierEntry> Hold(std::span<const TierEntry> pages);
  void ReleaseKept(size_t first);

  const EngineOptions options_;
  PageTier* const tier_;
  SequencePages& pages_;
  std::unordered_map<uint64_t, Load> loads_;
  uint64_t last_load_ = 0;
  int num_given_up_ = 0;              // of loads_
  std::deque<OfferedChain> offered_;  // oldest first
  int64_t num_offered_ = 0;           // pages
  std::optional<KeptChain> keeping_;
  Counters counters_;
};

}  // namespace diffserve
