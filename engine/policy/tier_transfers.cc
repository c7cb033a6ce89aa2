// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/tier_transfers.h"

#include <algorithm>
#include <utility>

#include "engine/policy/waiting_queue.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

constexpr double kMinLoadSeconds = 1, kLoadSecondsOfUnknownCost = 30;
constexpr int64_t kMaxOfferedPages = 4;  // as a multiple of the pool's

double LoadSeconds(int64_t tokens, const StepCosts& costs) {
  if (costs.token_seconds == 0) return kLoadSecondsOfUnknownCost;
  return std::max(kMinLoadSeconds, static_cast<double>(tokens) * costs.token_seconds);
}

}  // namespace

TierTransfers::TierTransfers(const EngineOptions& options, PageTier* tier, SequencePages& pages)
    : options_(options), tier_(tier), pages_(pages) {}

// REQUIRES: the page's tokens are known.
const TierKey& TierTransfers::KeyOf(Sequence& sequence, int page) const {
  for (auto known = static_cast<int>(sequence.tier_keys.size()); known <= page; ++known) {
    const TierKey before = known == 0 ? RootTierKey(sequence.request.cache_salt)
                                      : sequence.tier_keys.back();
    sequence.tier_keys.push_back(
        NextTierKey(before, sequence.PageTokens(known, options_.page_size)));
  }
  return sequence.tier_keys[static_cast<size_t>(page)];
}

TierEntry TierTransfers::EntryOf(Sequence& sequence, int page) const {
  const std::span<const int32_t> tokens = sequence.PageTokens(page, options_.page_size);
  return {KeyOf(sequence, page), {tokens.begin(), tokens.end()}};
}

// The entries with which the tier prolongs the sequence's prefix, of which `num_hits` pages are
// usable in memory. `pages`: its indexed pages; without those that the longer prefix does not need.
std::vector<TierEntry> TierTransfers::Find(Sequence& next, std::vector<int32_t>& pages,
                                           int num_hits, Running running) const {
  const PagePool& pool = pages_.pool();
  const auto end = static_cast<int>(std::min<int64_t>(
      next.max_tokens_from_cache() / options_.page_size, pages_.RoomForTransfers(running)));
  pages.resize(static_cast<size_t>(std::clamp<int64_t>(end, 0, std::ssize(pages))));
  const int64_t cached = std::ranges::count_if(pages,
                                               [&](int32_t page) { return pool.is_cached(page); });
  const auto num_indexed = static_cast<int>(pages.size());
  const int64_t max_new = std::min<int64_t>(end - num_indexed, pool.num_available() - cached);
  std::vector<TierEntry> entries;
  while (std::ssize(entries) < max_new) {
    TierEntry next_page = EntryOf(next, num_indexed + static_cast<int>(entries.size()));
    if (!tier_->Contains(next_page.key, TierKind::kPage)) break;
    entries.push_back(std::move(next_page));
  }
  if (pages_.states().empty()) return entries;
  // Only a prefix that ends at a snapshot is usable.
  int last = num_indexed + static_cast<int>(entries.size()) - 1;
  while (last >= num_hits && !tier_->Contains(KeyOf(next, last), TierKind::kSnapshot)) --last;
  if (last < num_hits) return {};
  pages.resize(static_cast<size_t>(std::min(last + 1, num_indexed)));
  entries.resize(static_cast<size_t>(std::max(last + 1 - num_indexed, 0)));
  entries.push_back(EntryOf(next, last));
  return entries;
}

bool TierTransfers::TryLoad(Sequence& next, int num_hits, Running running, const StepCosts& costs,
                            const std::function<std::unique_ptr<Sequence>()>& take) {
  if (tier_ == nullptr || num_given_up_ > 0 || next.asked_tier || !pages_.TakesFromCache(next))
    return false;
  next.asked_tier = true;
  Load load = {.held = pages_.IndexedPages(next)};
  std::vector<TierEntry> entries = Find(next, load.held, num_hits, running);
  if (entries.empty()) return false;
  load.num_hits = static_cast<int>(load.held.size());
  load.begin = num_hits * options_.page_size;
  if (!pages_.states().empty()) {
    const int end = (load.num_hits + static_cast<int>(entries.size()) - 1) * options_.page_size;
    load.snapshot = pages_.states().Allocate(end);
    if (!load.snapshot) return false;
    entries.back().snapshot = *load.snapshot;
  }
  for (const int32_t page : load.held) pages_.HoldForTransfer(page);
  for (size_t i = 0; i + (load.snapshot ? 1 : 0) < entries.size(); ++i)
    load.held.push_back(entries[i].page = pages_.TakeForTransfer());
  load.sequence = take();
  ++load.sequence->client->num_loading;
  load.deadline = costs.now +
                  LoadSeconds(std::ssize(load.held) * options_.page_size - load.begin, costs);
  const uint64_t id = ++last_load_;
  loads_.emplace(id, std::move(load));
  tier_->Load(id, std::move(entries));
  return true;
}

// Indexes the loaded pages that are right. Returns the end of the tokens that are usable now.
int TierTransfers::IndexLoaded(Load& load, int num_loaded) {
  int end = load.begin;
  const auto num_held = static_cast<int>(load.held.size());
  int32_t parent = load.num_hits == 0 ? -1 : load.held[static_cast<size_t>(load.num_hits) - 1];
  for (int page = load.num_hits; page < std::min(load.num_hits + num_loaded, num_held); ++page) {
    int32_t& own = load.held[static_cast<size_t>(page)];
    if (!pages_.Index(*load.sequence, page, parent, own)) break;
    parent = own;
    end = (page + 1) * options_.page_size;
  }
  return end;
}

// The same with the load's snapshot, without which nothing new is usable. `end`: of IndexLoaded.
int TierTransfers::AdoptSnapshot(Load& load, int num_loaded, int end) {
  if (!load.snapshot) return end;
  const auto num_held = static_cast<int>(load.held.size());
  const bool is_right = load.sequence != nullptr && !load.is_stale &&
                        load.num_hits + num_loaded > num_held &&
                        pages_.index().Contains(load.held.back());
  if (!is_right) {
    pages_.states().Release(*load.snapshot);
    return load.begin;
  }
  end = num_held * options_.page_size;
  pages_.states().Adopt(*std::move(load.snapshot), load.held.back(), end - load.begin);
  return end;
}

// Returns the load's sequence, nullptr if it has ended.
std::unique_ptr<Sequence> TierTransfers::FinishLoad(uint64_t id, int num_loaded) {
  auto node = loads_.extract(id);
  DS_CHECK(!node.empty(), "a load is done once");
  Load& load = node.mapped();
  num_given_up_ -= load.is_given_up ? 1 : 0;
  int end = load.begin;  // of the tokens that are usable now
  if (load.sequence != nullptr && !load.is_stale) end = IndexLoaded(load, num_loaded);
  end = AdoptSnapshot(load, num_loaded, end);
  for (size_t i = load.held.size(); i-- > 0;) pages_.ReleaseOfTransfer(load.held[i]);
  counters_.tokens_loaded += static_cast<uint64_t>(end - load.begin);
  if (load.sequence == nullptr) return nullptr;
  load.sequence->loaded_begin = load.begin;
  load.sequence->loaded_end = end;
  --load.sequence->client->num_loading;
  if (load.is_stale) load.sequence->asked_tier = false;
  return std::move(load.sequence);
}

// The pages of a load that has ended are free when the tier has released them.
bool TierTransfers::End(const Sequence& sequence) {
  const auto it = std::ranges::find_if(
      loads_, [&](const auto& load) { return load.second.sequence.get() == &sequence; });
  if (it == loads_.end()) return false;
  --sequence.client->num_loading;
  tier_->Cancel(it->first);
  it->second.sequence.reset();
  return true;
}

std::optional<double> TierTransfers::NextDeadline() const {
  std::optional<double> next;
  for (const auto& [id, load] : loads_) {
    if (load.sequence != nullptr) next = std::min(next.value_or(load.deadline), load.deadline);
  }
  return next;
}

TierTransfers::Sequences TierTransfers::GiveUpSlow(double now) {
  Sequences waiting;
  for (auto& [id, load] : loads_) {
    if (load.sequence == nullptr || now < load.deadline) continue;
    tier_->Cancel(id);
    --load.sequence->client->num_loading;
    waiting.push_back(std::move(load.sequence));
    load.is_given_up = true;
    ++num_given_up_;
    ++counters_.slow_loads;
  }
  return waiting;
}

std::vector<RequestId> TierTransfers::LoadingRequests() const {
  std::vector<RequestId> requests;
  for (const auto& [id, load] : loads_) {
    if (load.sequence != nullptr) requests.push_back(load.sequence->request.id);
  }
  std::ranges::sort(requests);
  return requests;
}

TierTransfers::Sequences TierTransfers::Finish() {
  Sequences waiting;
  if (tier_ == nullptr) return waiting;
  for (const PageTier::Done& done : tier_->TakeDone()) {
    if (done.load == 0) {
      ++keeping_->num_done;  // entries are done in the order in which they were given
    } else if (std::unique_ptr<Sequence> sequence = FinishLoad(done.load, done.num_loaded)) {
      waiting.push_back(std::move(sequence));
    }
  }
  return waiting;
}

void TierTransfers::Offer(Sequence& sequence) {
  if (tier_ == nullptr) return;
  OfferedChain chain;
  for (int i = 0; i < sequence.num_indexed_pages; ++i) {
    const int32_t page = sequence.pages[static_cast<size_t>(i)];
    if (!pages_.index().Contains(page)) break;
    TierEntry entry = EntryOf(sequence, i);
    entry.page = page;
    chain.pages.push_back(std::move(entry));
    chain.serials.push_back(pages_.index().SerialOf(page));
  }
  if (chain.pages.empty()) return;
  num_offered_ += std::ssize(chain.pages);
  offered_.push_back(std::move(chain));
  while (num_offered_ > kMaxOfferedPages * pages_.pool().num_pages()) DropOffer();
}

void TierTransfers::DropOffer() {
  num_offered_ -= std::ssize(offered_.front().pages);
  counters_.pages_lost += offered_.front().pages.size();
  offered_.pop_front();
}

size_t TierTransfers::NumStillIndexed(const OfferedChain& chain) const {
  const PrefixIndex& index = pages_.index();
  size_t count = 0;
  while (count < chain.pages.size() && index.Contains(chain.pages[count].page) &&
         index.SerialOf(chain.pages[count].page) == chain.serials[count])
    ++count;
  return count;
}

// Takes the first chain of offered pages, as far as it is still in the index and there is room, and
// holds its pages.
void TierTransfers::StartKeeping(Running running) {
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
    const int64_t room = std::max<int64_t>(0, pages_.RoomForTransfers(running));
    const size_t num_held = std::min(num_there, static_cast<size_t>(room));
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
std::vector<TierEntry> TierTransfers::Hold(std::span<const TierEntry> pages) {
  StateStore& states = pages_.states();
  std::vector<std::optional<SnapshotMemory>> snapshots(pages.size());
  for (size_t i = pages.size(); i-- > 0;) {
    const TierEntry& page = pages[i];
    if (states.HasSnapshot(page.page) && !tier_->Contains(page.key, TierKind::kSnapshot))
      snapshots[i] = states.Hold(page.page);
  }
  std::vector<TierEntry> entries;
  for (size_t i = 0; i < pages.size(); ++i) {
    pages_.HoldForTransfer(pages[i].page);
    entries.push_back(pages[i]);
    if (snapshots[i])
      entries.push_back({pages[i].key, pages[i].tokens, -1, *std::move(snapshots[i])});
  }
  return entries;
}

void TierTransfers::Keep(Running running, bool starts_chains) {
  if (tier_ == nullptr) return;
  if (starts_chains) StartKeeping(running);
  while (keeping_) {
    std::vector<TierEntry>& entries = keeping_->entries;
    while (keeping_->num_given < entries.size() && tier_->num_free() > 0) {
      ++counters_.pages_kept;
      tier_->Keep(entries[keeping_->num_given++]);
    }
    if (keeping_->num_done < entries.size()) return;
    ReleaseKept(0);
    keeping_.reset();
    if (starts_chains) StartKeeping(running);
  }
}

// Releases the entries of the chain that is being kept, from its end down to `first`.
void TierTransfers::ReleaseKept(size_t first) {
  for (std::vector<TierEntry>& entries = keeping_->entries; entries.size() > first;
       entries.pop_back()) {
    const TierEntry& last = entries.back();
    if (last.kind() == TierKind::kSnapshot) {
      pages_.states().Release(last.snapshot);
    } else {
      pages_.ReleaseOfTransfer(last.page);
    }
  }
}

void TierTransfers::StopKeeping() {
  if (!keeping_) return;
  counters_.pages_lost += keeping_->entries.size() - keeping_->num_given;
  ReleaseKept(keeping_->num_given);
}

int TierTransfers::NumPagesOnlyKept() const {
  if (!keeping_) return 0;
  return static_cast<int>(std::ranges::count_if(keeping_->entries, [&](const TierEntry& entry) {
    return entry.kind() == TierKind::kPage && pages_.pool().holders(entry.page) == 1;
  }));
}

void TierTransfers::Forget(Sequence& sequence) {
  for (int page = 0; tier_ != nullptr && page < sequence.num_indexed_pages; ++page)
    tier_->Forget(KeyOf(sequence, page));
}

void TierTransfers::Reset(CacheReset which) {
  for (auto& [id, load] : loads_)
    load.is_stale |= which.second_tier || (which.memory && load.num_hits > 0);
  if (!which.second_tier || tier_ == nullptr) return;
  offered_.clear();
  num_offered_ = 0;
  StopKeeping();
  tier_->Clear();
}

std::vector<int32_t> TierTransfers::HeldPages() const {
  std::vector<int32_t> held;
  for (const auto& [id, load] : loads_) held.insert(held.end(), load.held.begin(), load.held.end());
  if (!keeping_) return held;
  for (const TierEntry& entry : keeping_->entries) {
    if (entry.kind() == TierKind::kPage) held.push_back(entry.page);
  }
  return held;
}

std::vector<const SnapshotMemory*> TierTransfers::HeldSnapshots() const {
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

void TierTransfers::CheckInvariants() const {
  for (const auto& [id, load] : loads_) {
    for (auto i = static_cast<size_t>(load.num_hits); i < load.held.size(); ++i) {
      DS_CHECK(pages_.pool().holders(load.held[i]) == 1 && !pages_.index().Contains(load.held[i]),
               "only its load knows a page that is being loaded");
    }
    DS_CHECK(load.sequence == nullptr || load.sequence->pages.empty(),
             "what is being loaded holds nothing itself");
  }
}

}  // namespace diffserve
