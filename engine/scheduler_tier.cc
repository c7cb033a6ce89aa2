// SPDX-License-Identifier: Apache-2.0
// Scheduler, second tier: which pages and snapshots are loaded from the tier, and which are kept in
// it.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"
#include "kernels/base/check.h"

namespace diffserve {
namespace {

constexpr double kMinLoadSeconds = 1, kLoadSecondsOfUnknownCost = 30;

}  // namespace

// REQUIRES: the page's tokens are known.
const TierKey& Scheduler::TierKeyOf(Sequence& sequence, int page) const {
  for (auto known = static_cast<int>(sequence.tier_keys.size()); known <= page; ++known) {
    const TierKey before = known == 0 ? RootTierKey(sequence.request.cache_salt)
                                      : sequence.tier_keys.back();
    sequence.tier_keys.push_back(
        NextTierKey(before, sequence.PageTokens(known, options_.page_size)));
  }
  return sequence.tier_keys[static_cast<size_t>(page)];
}

// How many more pages transfers may hold. A running sequence never yields its pages to a transfer,
// and the oldest, and those that may not be preempted again, need theirs to advance.
int64_t Scheduler::RoomForTransfers() const {
  int64_t needed = 0, unyielding = 0, sum = 0;
  for (const auto& sequence : running_) {
    const int64_t pages = MaxPages(*sequence);
    sum += pages;
    needed = std::max(needed, pages);
    if (sequence->preemptions >= options_.max_preemptions_per_sequence) unyielding = sum;
  }
  return pool_.num_pages() - std::max(needed, unyielding) - num_transferring_;
}

// The entries with which the tier prolongs the sequence's prefix, of which `num_hits` pages are
// usable in memory. `pages`: its indexed pages; without those that the longer prefix does not need.
std::vector<TierEntry> Scheduler::FindInTier(Sequence& next, std::vector<int32_t>& pages,
                                             int num_hits) {
  const auto entry = [&](int page) {
    const std::span<const int32_t> tokens = next.PageTokens(page, options_.page_size);
    return TierEntry{TierKeyOf(next, page), {tokens.begin(), tokens.end()}};
  };
  const auto end = static_cast<int>(
      std::min<int64_t>(next.max_tokens_from_cache() / options_.page_size, RoomForTransfers()));
  pages.resize(static_cast<size_t>(std::clamp<int64_t>(end, 0, std::ssize(pages))));
  const int64_t cached = std::ranges::count_if(pages,
                                               [&](int32_t page) { return pool_.is_cached(page); });
  const auto num_indexed = static_cast<int>(pages.size());
  const int64_t max_new = std::min<int64_t>(end - num_indexed, pool_.num_available() - cached);
  std::vector<TierEntry> entries;
  while (std::ssize(entries) < max_new) {
    TierEntry next_page = entry(num_indexed + static_cast<int>(entries.size()));
    if (!tier_->Contains(next_page.key, TierKind::kPage)) break;
    entries.push_back(std::move(next_page));
  }
  if (states_.empty()) return entries;
  // Only a prefix that ends at a snapshot is usable.
  int last = num_indexed + static_cast<int>(entries.size()) - 1;
  while (last >= num_hits && !tier_->Contains(TierKeyOf(next, last), TierKind::kSnapshot)) --last;
  if (last < num_hits) return {};
  pages.resize(static_cast<size_t>(std::min(last + 1, num_indexed)));
  entries.resize(static_cast<size_t>(std::max(last + 1 - num_indexed, 0)));
  entries.push_back(entry(last));
  return entries;
}

// Takes the next sequence out of the queue while more of its prefix is loaded. False: the tier has
// no more of it, or there is no room for it.
bool Scheduler::StartLoad(Sequence& next, int num_hits) {
  if (tier_ == nullptr || num_given_up_ > 0 || next.asked_tier || !TakesFromCache(next))
    return false;
  next.asked_tier = true;
  TierLoad load = {.held = IndexedPages(next)};
  std::vector<TierEntry> entries = FindInTier(next, load.held, num_hits);
  if (entries.empty()) return false;
  load.num_hits = static_cast<int>(load.held.size());
  load.begin = num_hits * options_.page_size;
  if (!states_.empty()) {
    const int end = (load.num_hits + static_cast<int>(entries.size()) - 1) * options_.page_size;
    load.snapshot = states_.Allocate(end);
    if (!load.snapshot) return false;
    entries.back().snapshot = *load.snapshot;
  }
  for (const int32_t page : load.held) pool_.Share(page);
  for (size_t i = 0; i + (load.snapshot ? 1 : 0) < entries.size(); ++i)
    load.held.push_back(entries[i].page = AllocatePage());
  load.sequence = queue_.Remove(next);
  ++load.sequence->client->num_loading;
  num_transferring_ += std::ssize(load.held);
  load.deadline = now_ + LoadSeconds(std::ssize(load.held) * options_.page_size - load.begin);
  const uint64_t id = ++last_load_;
  loads_.emplace(id, std::move(load));
  tier_->Load(id, std::move(entries));
  return true;
}

// Indexes the pages that are right and lets the sequence wait again, at its old place.
void Scheduler::FinishLoad(uint64_t id, int num_loaded) {
  auto node = loads_.extract(id);
  DS_CHECK(!node.empty(), "a load is done once");
  TierLoad& load = node.mapped();
  num_transferring_ -= std::ssize(load.held);
  num_given_up_ -= load.is_given_up ? 1 : 0;
  const auto num_held = static_cast<int>(load.held.size());
  const bool is_wanted = load.sequence != nullptr && !load.is_stale;
  int end = load.begin;  // of the tokens that are usable now
  if (is_wanted) {
    int32_t parent = load.num_hits == 0 ? -1 : load.held[static_cast<size_t>(load.num_hits) - 1];
    for (int page = load.num_hits; page < std::min(load.num_hits + num_loaded, num_held); ++page) {
      int32_t& own = load.held[static_cast<size_t>(page)];
      parent = index_.Insert(KeyOf(*load.sequence, page, parent), own);
      if (parent < 0) break;
      end = (page + 1) * options_.page_size;
      if (parent == own) continue;
      pool_.Share(parent);  // another sequence has computed it in the meantime
      pool_.Release(std::exchange(own, parent), false);
    }
  }
  if (load.snapshot) {
    const bool is_right = is_wanted && load.num_hits + num_loaded > num_held &&
                          index_.Contains(load.held.back());
    end = is_right ? num_held * options_.page_size : load.begin;
    if (is_right) {
      states_.Adopt(*std::move(load.snapshot), load.held.back(), end - load.begin);
    } else {
      states_.Release(*load.snapshot);
    }
  }
  for (size_t i = load.held.size(); i-- > 0;)
    pool_.Release(load.held[i], index_.Contains(load.held[i]));
  counters_.tokens_loaded += static_cast<uint64_t>(end - load.begin);
  if (load.sequence == nullptr) return;
  load.sequence->loaded_begin = load.begin;
  load.sequence->loaded_end = end;
  --load.sequence->client->num_loading;
  if (load.is_stale) load.sequence->asked_tier = false;
  queue_.Put(std::move(load.sequence));
}

// The request of a load has ended. Its pages are free when the tier has let them go.
bool Scheduler::EndLoading(const Sequence& sequence) {
  const auto it = std::ranges::find_if(
      loads_, [&](const auto& load) { return load.second.sequence.get() == &sequence; });
  if (it == loads_.end()) return false;
  --sequence.client->num_loading;
  tier_->Cancel(it->first);
  it->second.sequence.reset();
  return true;
}

void Scheduler::SetTime(double now, double token_seconds) {
  now_ = now;
  token_seconds_ = token_seconds;
}

double Scheduler::LoadSeconds(int64_t tokens) const {
  if (token_seconds_ == 0) return kLoadSecondsOfUnknownCost;
  return std::max(kMinLoadSeconds, static_cast<double>(tokens) * token_seconds_);
}

std::optional<double> Scheduler::NextLoadDeadline() const {
  std::optional<double> next;
  for (const auto& [id, load] : loads_) {
    if (load.sequence != nullptr) next = std::min(next.value_or(load.deadline), load.deadline);
  }
  return next;
}

void Scheduler::GiveUpSlowLoads(double now) {
  for (auto& [id, load] : loads_) {
    if (load.sequence == nullptr || now < load.deadline) continue;
    tier_->Cancel(id);
    --load.sequence->client->num_loading;
    queue_.Put(std::move(load.sequence));
    load.is_given_up = true;
    ++num_given_up_;
    ++counters_.slow_loads;
  }
}

std::vector<RequestId> Scheduler::LoadingRequests() const {
  std::vector<RequestId> requests;
  for (const auto& [id, load] : loads_) {
    if (load.sequence != nullptr) requests.push_back(load.sequence->request.id);
  }
  std::ranges::sort(requests);
  return requests;
}

// Remembers the sequence's indexed pages, which are about to be released, for KeepPages.
void Scheduler::OfferPages(Sequence& sequence) {
  if (tier_ == nullptr) return;
  OfferedChain chain;
  for (int i = 0; i < sequence.num_indexed_pages; ++i) {
    const int32_t page = sequence.pages[static_cast<size_t>(i)];
    if (!index_.Contains(page)) break;
    const std::span<const int32_t> tokens = sequence.PageTokens(i, options_.page_size);
    chain.pages.push_back({TierKeyOf(sequence, i), {tokens.begin(), tokens.end()}, page});
    chain.serials.push_back(index_.SerialOf(page));
  }
  if (chain.pages.empty()) return;
  num_offered_ += std::ssize(chain.pages);
  offered_.push_back(std::move(chain));
  while (num_offered_ > kMaxOfferedPages * pool_.num_pages()) DropOffer();
}

void Scheduler::DropOffer() {
  num_offered_ -= std::ssize(offered_.front().pages);
  counters_.pages_lost += offered_.front().pages.size();
  offered_.pop_front();
}

size_t Scheduler::NumStillIndexed(const OfferedChain& chain) const {
  size_t count = 0;
  while (count < chain.pages.size() && index_.Contains(chain.pages[count].page) &&
         index_.SerialOf(chain.pages[count].page) == chain.serials[count])
    ++count;
  return count;
}

// Takes the first chain of offered pages, as far as it is still in the index and there is room, and
// holds its pages, because a page must not leave the index before those after it.
void Scheduler::StartKeeping() {
  while (!offered_.empty() && !keeping_) {
    OfferedChain chain = std::move(offered_.front());
    offered_.pop_front();
    num_offered_ -= std::ssize(chain.pages);
    const size_t num_there = NumStillIndexed(chain);
    const auto in_tier = [&](const TierEntry& entry) {
      return tier_->Contains(entry.key, entry.kind());
    };
    const auto is_known = std::ranges::find_if_not(
        chain.pages.begin(), chain.pages.begin() + static_cast<ptrdiff_t>(num_there), in_tier);
    const auto num_known = static_cast<size_t>(is_known - chain.pages.begin());
    const size_t num_held = std::min(num_there,
                                     static_cast<size_t>(std::max<int64_t>(0, RoomForTransfers())));
    counters_.pages_lost += chain.pages.size() - std::max(num_held, num_known);
    KeptChain kept = {.entries = Hold(std::span(chain.pages).first(num_held))};
    while (kept.num_given < kept.entries.size() && in_tier(kept.entries[kept.num_given]))
      ++kept.num_given;
    kept.num_done = kept.num_given;
    const bool is_new = kept.num_given < kept.entries.size();
    keeping_ = std::move(kept);
    if (is_new) return;
    ReleaseKept(0);
    keeping_.reset();
  }
}

// Holds the pages, and those of their snapshots that the tier lacks, as far as there is room: the
// last ones first, since these save the most.
std::vector<TierEntry> Scheduler::Hold(std::span<const TierEntry> pages) {
  std::vector<std::optional<SnapshotMemory>> snapshots(pages.size());
  for (size_t i = pages.size(); i-- > 0;) {
    const TierEntry& page = pages[i];
    if (states_.HasSnapshot(page.page) && !tier_->Contains(page.key, TierKind::kSnapshot))
      snapshots[i] = states_.Hold(page.page);
  }
  std::vector<TierEntry> entries;
  for (size_t i = 0; i < pages.size(); ++i) {
    pool_.Share(pages[i].page);
    ++num_transferring_;
    entries.push_back(pages[i]);
    if (snapshots[i])
      entries.push_back({pages[i].key, pages[i].tokens, -1, *std::move(snapshots[i])});
  }
  return entries;
}

// Gives the tier what it takes of the offered pages.
void Scheduler::KeepPages() {
  if (!short_of_pages_) StartKeeping();
  while (keeping_) {
    std::vector<TierEntry>& entries = keeping_->entries;
    while (keeping_->num_given < entries.size() && tier_->num_free() > 0) {
      ++counters_.pages_kept;
      tier_->Keep(entries[keeping_->num_given++]);
    }
    if (keeping_->num_done < entries.size()) return;
    ReleaseKept(0);
    keeping_.reset();
    if (!short_of_pages_) StartKeeping();
  }
}

// Releases the entries of the chain that is being kept, from its end down to `first`.
void Scheduler::ReleaseKept(size_t first) {
  for (std::vector<TierEntry>& entries = keeping_->entries; entries.size() > first;
       entries.pop_back()) {
    const TierEntry& last = entries.back();
    if (last.kind() == TierKind::kSnapshot) {
      states_.Release(last.snapshot);
    } else {
      pool_.Release(last.page, index_.Contains(last.page));
      --num_transferring_;
    }
  }
}

// A sequence needs the pages of the chain: those that the tier does not copy yet are released.
void Scheduler::StopKeeping() {
  if (!keeping_) return;
  counters_.pages_lost += keeping_->entries.size() - keeping_->num_given;
  ReleaseKept(keeping_->num_given);
}

int Scheduler::NumPagesOnlyKept() const {
  if (!keeping_) return 0;
  return static_cast<int>(std::ranges::count_if(keeping_->entries, [&](const TierEntry& entry) {
    return entry.kind() == TierKind::kPage && pool_.holders(entry.page) == 1;
  }));
}

void Scheduler::FinishTransfers() {
  if (tier_ == nullptr) return;
  for (const PageTier::Done& done : tier_->TakeDone()) {
    if (done.load != 0) {
      FinishLoad(done.load, done.num_loaded);
    } else {
      ++keeping_->num_done;  // entries are done in the order in which they were given
    }
  }
  KeepPages();
}

// Adds what transfers hold to `holders`.
void Scheduler::CheckTransfers(std::vector<int>& holders) const {
  int64_t held = 0;
  if (keeping_) {
    for (const TierEntry& entry : keeping_->entries) {
      if (entry.kind() == TierKind::kSnapshot) continue;
      ++held;
      ++holders[static_cast<size_t>(entry.page)];
    }
  }
  for (const auto& [id, load] : loads_) {
    held += std::ssize(load.held);
    for (const int32_t page : load.held) ++holders[static_cast<size_t>(page)];
    for (size_t i = static_cast<size_t>(load.num_hits); i < load.held.size(); ++i) {
      DS_CHECK(pool_.holders(load.held[i]) == 1 && !index_.Contains(load.held[i]),
               "only its load knows a page that is being loaded");
    }
    DS_CHECK(load.sequence == nullptr || load.sequence->pages.empty(),
             "what is being loaded holds nothing itself");
  }
  DS_CHECK(held == num_transferring_, "what transfers hold is counted");
  DS_CHECK(RoomForTransfers() >= 0, "what must advance has room beside the transfers");
}

std::vector<const SnapshotMemory*> Scheduler::SnapshotsOfTransfers() const {
  std::vector<const SnapshotMemory*> snapshots;
  for (const auto& [id, load] : loads_) {
    if (load.snapshot) snapshots.push_back(&*load.snapshot);
  }
  if (!keeping_) return snapshots;
  for (const TierEntry& entry : keeping_->entries) {
    if (entry.kind() == TierKind::kSnapshot) snapshots.push_back(&entry.snapshot);
  }
  return snapshots;
}

// Without the second tier, pages on their way to it get there if they are held already.
void Scheduler::ResetPrefixCache(CacheReset which) {
  for (auto& [id, load] : loads_)
    load.is_stale |= which.second_tier || (which.memory && load.num_hits > 0);
  if (which.second_tier && tier_ != nullptr) {
    offered_.clear();
    num_offered_ = 0;
    StopKeeping();
    tier_->Clear();
  }
  if (which.memory) ForgetPages(index_.Clear());
}

}  // namespace diffserve
