// SPDX-License-Identifier: Apache-2.0
// Scheduler, pages: which sequence holds which pages, and what the prefix index contains.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/scheduler.h"
#include "kernels/base/check.h"

namespace diffserve {

int64_t Scheduler::PagesMissing(const Sequence& sequence, int tokens) const {
  const int64_t slots = int64_t{sequence.num_computed} + sequence.num_planned + tokens;
  return PagesFor(slots, options_.page_size) - static_cast<int64_t>(sequence.pages.size());
}

int64_t Scheduler::MaxPages(const Sequence& sequence) const {
  return PagesFor(MaxCachedTokens(sequence.request), options_.page_size);
}

int Scheduler::PlanTokens(Sequence& sequence, int tokens) {
  while (tokens > 0 && PagesMissing(sequence, tokens) > 0) {
    if (pool_.num_available() == 0) break;
    sequence.pages.push_back(AllocatePage());
    ++sequence.client->num_pages;
  }
  const int64_t slots = static_cast<int64_t>(sequence.pages.size()) * options_.page_size;
  const int planned = static_cast<int>(
      std::min<int64_t>(tokens, slots - sequence.num_computed - sequence.num_planned));
  sequence.num_planned += planned;
  return planned;
}

int32_t Scheduler::AllocatePage() {
  const std::optional<PagePool::Grant> grant = pool_.Allocate();
  DS_CHECK(grant.has_value(), "a page is available");
  if (grant->was_cached) {
    states_.Forget(grant->page);
    index_.Evict(grant->page);
  }
  draft_pages_.Clear(grant->page);
  return grant->page;
}

// Releases the pages after the last computed or planned token. REQUIRES: they are not indexed.
void Scheduler::TrimPages(Sequence& sequence) {
  for (; PagesMissing(sequence, 0) < 0; sequence.pages.pop_back()) {
    pool_.Release(sequence.pages.back(), false);
    --sequence.client->num_pages;
  }
}

// Releases the sequence's pages and state. The last page comes first, so that a cached chain is
// evicted from its end.
void Scheduler::ReleasePages(Sequence& sequence) {
  OfferPages(sequence);
  for (size_t i = sequence.pages.size(); i-- > 0;)
    pool_.Release(sequence.pages[i], index_.Contains(sequence.pages[i]));
  sequence.client->num_pages -= std::ssize(sequence.pages);
  sequence.pages.clear();
  sequence.num_indexed_pages = sequence.num_drafted_pages = 0;
  states_.End(sequence);
}

// Whether the head of the queue may run now. It may if it and all running sequences can run to
// their ends together; then none is preempted for pages. Otherwise there must be pages for all
// tokens known so far, its own and the others', and one more page per running sequence. Transfers
// keep their pages for a while, so it must fit beside them.
bool Scheduler::HasRoomFor(const Sequence& head, const std::vector<int32_t>& hits) const {
  if (MaxPages(head) + num_transferring_ > pool_.num_pages()) return false;
  if (running_.empty()) return true;
  int64_t pages_at_end = MaxPages(head) + num_transferring_;
  int64_t pages_missing = static_cast<int64_t>(running_.size());
  for (const auto& sequence : running_) {
    pages_at_end += MaxPages(*sequence);
    pages_missing += PagesMissing(*sequence, sequence->num_remaining() - sequence->num_planned);
  }
  if (pages_at_end <= pool_.num_pages()) return true;
  if (head.preemptions >= options_.max_preemptions_per_sequence) return false;
  pages_missing += PagesFor(head.num_tokens(), options_.page_size) -
                   static_cast<int64_t>(hits.size());
  pages_missing += std::ranges::count_if(hits, [&](int32_t page) { return pool_.is_cached(page); });
  return pages_missing <= pool_.num_available();
}

bool Scheduler::TakesFromCache(const Sequence& sequence) const {
  return options_.enable_prefix_caching && !sequence.wants_prompt_scores() &&
         sequence.request.observed_from > 0;
}

bool Scheduler::IsKnown(const Sequence& sequence, int page) const {
  return sequence.PageTokens(page, options_.page_size).back() != kDrawnByStepBefore;
}

// REQUIRES: the page IsKnown.
PrefixIndex::Key Scheduler::KeyOf(Sequence& sequence, int page, int32_t parent) const {
  for (int known = static_cast<int>(sequence.page_hashes.size()); known <= page; ++known) {
    const uint64_t before = known == 0 ? index_.RootHash(sequence.request.cache_salt)
                                       : sequence.page_hashes.back();
    sequence.page_hashes.push_back(
        index_.ChainHash(before, sequence.PageTokens(known, options_.page_size)));
  }
  return {parent, sequence.page_hashes[page], sequence.PageTokens(page, options_.page_size),
          sequence.request.cache_salt};
}

// The longest run of indexed pages that the sequence may take.
std::vector<int32_t> Scheduler::IndexedPages(Sequence& sequence) const {
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

// The same. For a model with states, the run ends at a snapshot.
std::vector<int32_t> Scheduler::FindPrefix(Sequence& sequence) const {
  std::vector<int32_t> hits = IndexedPages(sequence);
  while (!states_.empty() && !hits.empty() && !states_.HasSnapshot(hits.back())) hits.pop_back();
  return hits;
}

// Whether the head should wait for a running sequence instead of computing the same prefix again,
// as when the n continuations of one prompt arrive together. It should if that sequence computes
// the page that the head needs next (for a model with states: takes the next usable snapshot). The
// other sequence must be at least as fast as the head would be, or have the page in a step that is
// not committed.
bool Scheduler::PrefixIsUnderWay(Sequence& head, int num_hits, int tokens) const {
  if (!TakesFromCache(head)) return false;
  const int found = num_hits * options_.page_size;
  return std::ranges::any_of(running_, [&](const auto& other) {
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

void Scheduler::CountPrefix(Sequence& sequence, int num_hits) {
  const auto count = [&](MissReason reason) {
    ++counters_.prefix_misses[static_cast<size_t>(reason)];
  };
  if (!TakesFromCache(sequence)) return count(MissReason::kDisabled);
  counters_.prefix_queries += sequence.num_prompt_tokens();
  counters_.prefix_hits += sequence.cached_tokens;
  counters_.tier_hits += sequence.loaded_tokens;
  if (num_hits > 0) return;
  if (sequence.num_tokens() <= options_.page_size) return count(MissReason::kPartialPage);
  const PrefixIndex::Key first = KeyOf(sequence, 0, -1);
  count(!states_.empty() && index_.Find(first) >= 0 ? MissReason::kNoSnapshot
                                                    : index_.WhyMissing(first));
}

// Indexes the pages whose slots are all committed: their tokens are known, and no step in flight
// writes them. If the same tokens are indexed already, the sequence switches to that page, which
// has the same bits, and releases its own. So a sequence that holds a page of a chain also holds
// the pages before it.
void Scheduler::IndexFullPages(Sequence& sequence) {
  if (!options_.enable_prefix_caching) return;
  for (int page = sequence.num_indexed_pages;
       int64_t{page + 1} * options_.page_size <= sequence.num_committed; ++page) {
    const int32_t own = sequence.pages[page];
    const int32_t kept = index_.Insert(
        KeyOf(sequence, page, page == 0 ? -1 : sequence.pages[page - 1]), own);
    if (kept < 0) return;
    if (kept != own) {
      pool_.Share(kept);
      pool_.Release(own, false);
      sequence.pages[page] = kept;
      sequence.num_drafted_pages = std::min(sequence.num_drafted_pages, page);
    }
    sequence.num_indexed_pages = page + 1;
  }
}

// Removes the sequence's pages and all pages after them from the cache, because their K and V
// cannot be trusted.
void Scheduler::ForgetContent(Sequence& sequence) {
  if (sequence.num_indexed_pages == 0 || !index_.Contains(sequence.pages[0])) return;
  for (int page = 0; tier_ != nullptr && page < sequence.num_indexed_pages; ++page)
    tier_->Forget(TierKeyOf(sequence, page));
  ForgetPages(index_.EraseChain(sequence.pages[0]));
}

// Updates pool and state store after the pages have left the index.
void Scheduler::ForgetPages(const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) {
    states_.Forget(page);
    if (pool_.is_cached(page)) pool_.Forget(page);
  }
}

void Scheduler::CheckInvariants() const {
  pool_.CheckInvariants();
  index_.CheckInvariants();
  std::vector<int> holders(pool_.num_pages(), 0);
  for (const auto& sequence : running_) {
    const int64_t slots = int64_t{sequence->num_computed} + sequence->num_planned;
    DS_CHECK(slots <= sequence->num_tokens(),
             "only tokens that are known or under way are computed");
    DS_CHECK(sequence->num_committed <= sequence->num_computed, "what is committed was computed");
    const int hashed = static_cast<int>(sequence->page_hashes.size());
    DS_CHECK(hashed == 0 || IsKnown(*sequence, hashed - 1), "only known tokens are hashed");
    const int64_t indexed = int64_t{sequence->num_indexed_pages} * options_.page_size;
    DS_CHECK(indexed <= sequence->num_committed, "only committed slots are indexed");
    DS_CHECK(static_cast<int64_t>(sequence->pages.size()) == PagesFor(slots, options_.page_size),
             "a page table is as long as its tokens need");
    for (int32_t page : sequence->pages) ++holders[page];
    draft_pages_.CheckInvariants(*sequence);
    for (size_t i = static_cast<size_t>(sequence->num_indexed_pages); i < sequence->pages.size();
         ++i) {
      DS_CHECK(pool_.holders(sequence->pages[i]) == 1, "a page that may be written has one holder");
    }
  }
  states_.CheckInvariants(running_, index_, SnapshotsOfTransfers());
  const std::vector<const Sequence*> waiting = queue_.ByArrival();
  for (const Sequence* sequence : waiting) {
    DS_CHECK(sequence->state.slot < 0 && sequence->pages.empty() && sequence->num_planned == 0,
             "what waits holds nothing");
    DS_CHECK(sequence->num_computed == 0 && sequence->num_committed == 0, "what waits begins anew");
    DS_CHECK(!sequence->awaits_draw(), "what waits has known tokens only");
  }
  CheckTransfers(holders);
  DS_CHECK(by_id_.size() == running_.size() + waiting.size() + LoadingRequests().size(),
           "every sequence runs, waits or is being loaded");
  CheckClients();
  for (int32_t page = 0; page < pool_.num_pages(); ++page) {
    DS_CHECK(pool_.holders(page) == holders[page],
             "a page has as many holders as sequences and transfers list it");
    DS_CHECK(!pool_.is_cached(page) || index_.Contains(page), "a cached page is indexed");
    DS_CHECK(holders[page] > 0 || pool_.is_cached(page) || !index_.Contains(page),
             "an indexed page has content");
  }
}

}  // namespace diffserve
