// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/sequence_pages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/policy/waiting_queue.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

PrefixIndex::Options Complete(PrefixIndex::Options index_options, const EngineOptions& options) {
  index_options.num_pages = options.num_pages;
  index_options.page_size = options.page_size;
  return index_options;
}

}  // namespace

SequencePages::SequencePages(const EngineOptions& options, PrefixIndex::Options index_options)
    : options_(options),
      pool_(options.num_pages),
      index_(Complete(index_options, options)),
      states_(options),
      draft_pages_(options.num_pages, options.page_size) {}

int64_t SequencePages::Missing(const Sequence& sequence, int tokens) const {
  const int64_t slots = int64_t{sequence.num_computed} + sequence.num_planned + tokens;
  return PagesFor(slots, options_.page_size) - static_cast<int64_t>(sequence.pages.size());
}

int64_t SequencePages::MaxPages(const Sequence& sequence) const {
  return PagesFor(MaxCachedTokens(sequence.request), options_.page_size);
}

void SequencePages::Start(Sequence& sequence, const std::vector<int32_t>& hits) {
  for (int32_t page : hits) pool_.Share(page);
  sequence.pages = hits;
  sequence.client->num_pages += std::ssize(hits);
  sequence.num_indexed_pages = static_cast<int>(hits.size());
  sequence.num_computed = sequence.num_committed = sequence.num_indexed_pages * options_.page_size;
  states_.Begin(sequence, hits.empty() ? -1 : hits.back());
}

int SequencePages::Grow(Sequence& sequence, int tokens) {
  while (tokens > 0 && Missing(sequence, tokens) > 0) {
    if (pool_.num_available() == 0) break;
    sequence.pages.push_back(Allocate());
    ++sequence.client->num_pages;
  }
  const int64_t slots = static_cast<int64_t>(sequence.pages.size()) * options_.page_size;
  const int planned = static_cast<int>(
      std::min<int64_t>(tokens, slots - sequence.num_computed - sequence.num_planned));
  sequence.num_planned += planned;
  return planned;
}

int SequencePages::GrowProposed(Sequence& sequence, int tokens) {
  const int planned = Grow(sequence, states_.TakeRows(sequence, tokens));
  states_.TrimRows(sequence, planned);
  return planned;
}

int32_t SequencePages::Allocate() {
  const std::optional<PagePool::Grant> grant = pool_.Allocate();
  DS_CHECK(grant.has_value(), "a page is available");
  if (grant->was_cached) {
    states_.Forget(grant->page);
    index_.Evict(grant->page);
  }
  draft_pages_.Clear(grant->page);
  return grant->page;
}

void SequencePages::Trim(Sequence& sequence) {
  for (; Missing(sequence, 0) < 0; sequence.pages.pop_back()) {
    pool_.Release(sequence.pages.back(), false);
    --sequence.client->num_pages;
  }
}

// The last page comes first, so that a cached chain is evicted from its end.
void SequencePages::Release(Sequence& sequence) {
  for (size_t i = sequence.pages.size(); i-- > 0;)
    pool_.Release(sequence.pages[i], index_.Contains(sequence.pages[i]));
  sequence.client->num_pages -= std::ssize(sequence.pages);
  sequence.pages.clear();
  sequence.num_indexed_pages = sequence.num_drafted_pages = 0;
  states_.End(sequence);
}

void SequencePages::Describe(Sequence& sequence, PlannedSequence& planned) {
  planned.pages = sequence.pages;
  planned.states = states_.PlanStep(sequence);
  planned.window_pages = sequence.state.window_pages;
}

void SequencePages::TakeBack(Sequence& sequence, int rejected) {
  sequence.num_computed -= rejected;
  Trim(sequence);
  states_.TakeBack(sequence, rejected);
  if (rejected > 0) draft_pages_.Cut(sequence, sequence.num_computed);
}

// Indexes the pages whose slots are all committed: their tokens are known, and no step in flight
// writes them. If the same tokens are indexed already, the sequence switches to that page and
// releases its own. So a sequence that holds a page of a chain also holds the pages before it.
void SequencePages::Commit(Sequence& sequence) {
  for (int page = sequence.num_indexed_pages;
       options_.enable_prefix_caching &&
       int64_t{page + 1} * options_.page_size <= sequence.num_committed;
       ++page) {
    int32_t& own = sequence.pages[static_cast<size_t>(page)];
    const int32_t before = own;
    if (!Index(sequence, page, page == 0 ? -1 : sequence.pages[static_cast<size_t>(page) - 1], own))
      break;
    if (own != before) sequence.num_drafted_pages = std::min(sequence.num_drafted_pages, page);
    sequence.num_indexed_pages = page + 1;
  }
  states_.Commit(sequence, index_);
}

// It may if it and all running sequences can run to their ends together; then none is preempted for
// pages. Otherwise there must be pages for all tokens known so far, its own and the others', and
// one more page per running sequence. Transfers keep their pages for a while, so it must fit beside
// them.
bool SequencePages::HasRoomFor(const Sequence& head, const std::vector<int32_t>& hits,
                               Running running) const {
  if (MaxPages(head) + num_held_by_transfers_ > pool_.num_pages()) return false;
  if (running.empty()) return true;
  int64_t pages_at_end = MaxPages(head) + num_held_by_transfers_;
  int64_t pages_missing = std::ssize(running);
  for (const auto& sequence : running) {
    pages_at_end += MaxPages(*sequence);
    pages_missing += Missing(*sequence, sequence->num_remaining() - sequence->num_planned);
  }
  if (pages_at_end <= pool_.num_pages()) return true;
  if (head.preemptions >= options_.max_preemptions_per_sequence) return false;
  pages_missing += PagesFor(head.num_tokens(), options_.page_size) - std::ssize(hits);
  pages_missing += std::ranges::count_if(hits, [&](int32_t page) { return pool_.is_cached(page); });
  return HasFree(pages_missing);
}

bool SequencePages::TakesFromCache(const Sequence& sequence) const {
  return options_.enable_prefix_caching && !sequence.wants_prompt_scores() &&
         sequence.request.observed_from > 0;
}

bool SequencePages::IsKnown(const Sequence& sequence, int page) const {
  return sequence.PageTokens(page, options_.page_size).back() != kDrawnByStepBefore;
}

// REQUIRES: the page IsKnown.
PrefixIndex::Key SequencePages::KeyOf(Sequence& sequence, int page, int32_t parent) const {
  for (int known = static_cast<int>(sequence.page_hashes.size()); known <= page; ++known) {
    const uint64_t before = known == 0 ? index_.RootHash(sequence.request.cache_salt)
                                       : sequence.page_hashes.back();
    sequence.page_hashes.push_back(
        index_.ChainHash(before, sequence.PageTokens(known, options_.page_size)));
  }
  return {parent, sequence.page_hashes[static_cast<size_t>(page)],
          sequence.PageTokens(page, options_.page_size), sequence.request.cache_salt};
}

std::vector<int32_t> SequencePages::IndexedPages(Sequence& sequence) const {
  std::vector<int32_t> hits;
  if (!TakesFromCache(sequence)) return hits;
  const int max_pages = sequence.max_tokens_from_cache() / options_.page_size;
  for (int page = 0; page < max_pages; ++page) {
    const int32_t hit = index_.Find(KeyOf(sequence, page, hits.empty() ? -1 : hits.back()));
    if (hit < 0) break;
    hits.push_back(hit);
  }
  return hits;
}

// For a model with states, the run ends at a snapshot.
std::vector<int32_t> SequencePages::FindPrefix(Sequence& sequence) const {
  std::vector<int32_t> hits = IndexedPages(sequence);
  while (!states_.empty() && !hits.empty() && !states_.HasSnapshot(hits.back())) hits.pop_back();
  return hits;
}

// As when the n continuations of one prompt arrive together. The head waits if a running sequence
// computes the page that it needs next (for a model with states: takes the next usable snapshot).
// The other sequence must be at least as fast as the head would be, or have the page in a step that
// is not committed.
bool SequencePages::PrefixIsUnderWay(Sequence& head, int num_hits, int tokens,
                                     Running running) const {
  if (!TakesFromCache(head)) return false;
  const int found = num_hits * options_.page_size;
  return std::ranges::any_of(running, [&](const auto& other) {
    const int committed = other->num_committed / options_.page_size * options_.page_size;
    if (other->num_indexed_pages * options_.page_size != committed) return false;
    // The position from which the head could continue.
    const int end = states_.empty() ? found + options_.page_size
                                    : states_.NextSnapshot(*other, std::max(found, committed));
    const bool is_ahead = end > committed && end <= other->num_tokens() &&
                          end <= head.max_tokens_from_cache();
    const bool soon = other->num_planned >= tokens || end <= other->num_computed;
    const int page = end / options_.page_size - 1;
    return is_ahead && soon && IsKnown(*other, page) &&
           KeyOf(*other, page, -1).hash == KeyOf(head, page, -1).hash;
  });
}

MissReason SequencePages::WhyMissing(Sequence& sequence) const {
  if (!TakesFromCache(sequence)) return MissReason::kDisabled;
  if (sequence.num_tokens() <= options_.page_size) return MissReason::kPartialPage;
  const PrefixIndex::Key first = KeyOf(sequence, 0, -1);
  return !states_.empty() && index_.Find(first) >= 0 ? MissReason::kNoSnapshot
                                                     : index_.WhyMissing(first);
}

bool SequencePages::Index(Sequence& sequence, int page, int32_t parent, int32_t& own) {
  const int32_t kept = index_.Insert(KeyOf(sequence, page, parent), own);
  if (kept < 0) return false;
  if (kept == own) return true;
  pool_.Share(kept);
  pool_.Release(std::exchange(own, kept), false);
  return true;
}

bool SequencePages::ForgetChain(const Sequence& sequence) {
  if (sequence.num_indexed_pages == 0 || !index_.Contains(sequence.pages[0])) return false;
  ForgetPages(index_.EraseChain(sequence.pages[0]));
  return true;
}

// Updates pool and state store after the pages have left the index.
void SequencePages::ForgetPages(const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) {
    states_.Forget(page);
    if (pool_.is_cached(page)) pool_.Forget(page);
  }
}

// The oldest running sequence, and those that may not be preempted again, need their pages to
// advance.
int64_t SequencePages::RoomForTransfers(Running running) const {
  int64_t needed = 0, unyielding = 0, sum = 0;
  for (const auto& sequence : running) {
    const int64_t pages = MaxPages(*sequence);
    sum += pages;
    needed = std::max(needed, pages);
    if (sequence->preemptions >= options_.max_preemptions_per_sequence) unyielding = sum;
  }
  return pool_.num_pages() - std::max(needed, unyielding) - num_held_by_transfers_;
}

void SequencePages::HoldForTransfer(int32_t page) {
  pool_.Share(page);
  ++num_held_by_transfers_;
}

int32_t SequencePages::TakeForTransfer() {
  ++num_held_by_transfers_;
  return Allocate();
}

void SequencePages::ReleaseOfTransfer(int32_t page) {
  pool_.Release(page, index_.Contains(page));
  --num_held_by_transfers_;
}

void SequencePages::CheckSequence(const Sequence& sequence) const {
  const int64_t slots = int64_t{sequence.num_computed} + sequence.num_planned;
  DS_CHECK(slots <= sequence.num_tokens(), "only tokens that are known or under way are computed");
  DS_CHECK(sequence.num_committed <= sequence.num_computed, "what is committed was computed");
  const int hashed = static_cast<int>(sequence.page_hashes.size());
  DS_CHECK(hashed == 0 || IsKnown(sequence, hashed - 1), "only known tokens are hashed");
  const int64_t indexed = int64_t{sequence.num_indexed_pages} * options_.page_size;
  DS_CHECK(indexed <= sequence.num_committed, "only committed slots are indexed");
  DS_CHECK(std::ssize(sequence.pages) == PagesFor(slots, options_.page_size),
           "a page table is as long as its tokens need");
  draft_pages_.CheckInvariants(sequence);
  for (auto i = static_cast<size_t>(sequence.num_indexed_pages); i < sequence.pages.size(); ++i)
    DS_CHECK(pool_.holders(sequence.pages[i]) == 1, "a page that may be written has one holder");
}

void SequencePages::CheckInvariants(Running running, std::span<const int32_t> transfers,
                                    std::span<const SnapshotMemory* const> snapshots) const {
  pool_.CheckInvariants();
  index_.CheckInvariants();
  std::vector<int> holders(static_cast<size_t>(pool_.num_pages()), 0);
  for (const auto& sequence : running) {
    CheckSequence(*sequence);
    for (int32_t page : sequence->pages) ++holders[static_cast<size_t>(page)];
  }
  for (const int32_t page : transfers) ++holders[static_cast<size_t>(page)];
  DS_CHECK(std::ssize(transfers) == num_held_by_transfers_, "what transfers hold is counted");
  DS_CHECK(RoomForTransfers(running) >= 0, "what must advance has room beside the transfers");
  states_.CheckInvariants(running, index_, snapshots);
  for (int32_t page = 0; page < pool_.num_pages(); ++page) {
    const int held = holders[static_cast<size_t>(page)];
    DS_CHECK(pool_.holders(page) == held,
             "a page has as many holders as sequences and transfers list it");
    DS_CHECK(!pool_.is_cached(page) || index_.Contains(page), "a cached page is indexed");
    DS_CHECK(held > 0 || pool_.is_cached(page) || !index_.Contains(page),
             "an indexed page has content");
  }
}

}  // namespace diffserve
