// SPDX-License-Identifier: Apache-2.0
// Scheduler, second tier: which pages are loaded from the tier, and which are kept in it.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"
#include "kernels/base/check.h"

namespace diffserve {

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

// Takes the next sequence out of the queue while more of its prefix is loaded. False: the tier has
// no more of it, or there is no room for it.
bool Scheduler::StartLoad(Sequence& next, const std::vector<int32_t>& hits) {
  if (tier_ == nullptr || next.asked_tier || !TakesFromCache(next)) return false;
  next.asked_tier = true;
  const auto num_hits = static_cast<int>(hits.size());
  const int64_t cached_hits = std::ranges::count_if(
      hits, [&](int32_t page) { return pool_.is_cached(page); });
  const int64_t room = std::min(RoomForTransfers() - num_hits, pool_.num_available() - cached_hits);
  const int max_pages = next.max_tokens_from_cache() / options_.page_size;
  std::vector<TierPage> pages;
  for (int page = num_hits; page < max_pages && std::ssize(pages) < room; ++page) {
    const TierKey& key = TierKeyOf(next, page);
    if (!tier_->Contains(key)) break;
    const std::span<const int32_t> tokens = next.PageTokens(page, options_.page_size);
    pages.push_back({key, {tokens.begin(), tokens.end()}, -1});
  }
  if (pages.empty()) return false;
  for (const int32_t page : hits) pool_.Share(page);
  TierLoad load = {.held = hits};
  for (TierPage& page : pages) {
    page.page = AllocatePage();
    load.held.push_back(page.page);
  }
  load.num_hits = num_hits;
  load.sequence = queue_.Remove(next);
  ++load.sequence->client->num_loading;
  num_transferring_ += std::ssize(load.held);
  const uint64_t id = ++last_load_;
  loads_.emplace(id, std::move(load));
  tier_->Load(id, std::move(pages));
  return true;
}

// Indexes the pages that are right and lets the sequence wait again, at its old place.
void Scheduler::FinishLoad(uint64_t id, int num_loaded) {
  auto node = loads_.extract(id);
  DS_CHECK(!node.empty(), "a load is done once");
  TierLoad& load = node.mapped();
  num_transferring_ -= std::ssize(load.held);
  if (load.sequence != nullptr && !load.is_stale) {
    int32_t parent = load.num_hits == 0 ? -1 : load.held[static_cast<size_t>(load.num_hits) - 1];
    for (int page = load.num_hits; page < load.num_hits + num_loaded; ++page) {
      int32_t& own = load.held[static_cast<size_t>(page)];
      parent = index_.Insert(KeyOf(*load.sequence, page, parent), own);
      if (parent < 0) break;
      ++counters_.pages_loaded;
      if (parent == own) continue;
      pool_.Share(parent);  // another sequence has computed it in the meantime
      pool_.Release(std::exchange(own, parent), false);
    }
  }
  for (size_t i = load.held.size(); i-- > 0;)
    pool_.Release(load.held[i], index_.Contains(load.held[i]));
  if (load.sequence == nullptr) return;
  --load.sequence->client->num_loading;
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

// Takes the first chain of offered pages, as far as it is still in the index and there is room, and
// holds its pages, because a page must not leave the index before those after it.
void Scheduler::StartKeeping() {
  while (!offered_.empty() && !keeping_) {
    OfferedChain chain = std::move(offered_.front());
    offered_.pop_front();
    num_offered_ -= std::ssize(chain.pages);
    size_t num_there = 0, num_known = 0;
    while (num_there < chain.pages.size() && index_.Contains(chain.pages[num_there].page) &&
           index_.SerialOf(chain.pages[num_there].page) == chain.serials[num_there])
      ++num_there;
    while (num_known < num_there && tier_->Contains(chain.pages[num_known].key)) ++num_known;
    const size_t num_held = std::min(num_there,
                                     static_cast<size_t>(std::max<int64_t>(0, RoomForTransfers())));
    counters_.pages_lost += chain.pages.size() - std::max(num_held, num_known);
    if (num_held <= num_known) continue;
    chain.pages.resize(num_held);
    for (const TierPage& page : chain.pages) pool_.Share(page.page);
    num_transferring_ += std::ssize(chain.pages);
    keeping_ = {.chain = std::move(chain), .num_given = num_known, .num_done = num_known};
  }
}

// Gives the tier what it takes of the offered pages.
void Scheduler::KeepPages() {
  if (!short_of_pages_) StartKeeping();
  while (keeping_) {
    std::vector<TierPage>& pages = keeping_->chain.pages;
    while (keeping_->num_given < pages.size() && tier_->num_free() > 0) {
      ++counters_.pages_kept;
      tier_->Keep(pages[keeping_->num_given++]);
    }
    if (keeping_->num_done < pages.size()) return;
    ReleaseKept(0);
    keeping_.reset();
    if (!short_of_pages_) StartKeeping();
  }
}

// Releases the pages of the chain that is being kept, from its end down to `first`.
void Scheduler::ReleaseKept(size_t first) {
  std::vector<TierPage>& pages = keeping_->chain.pages;
  num_transferring_ -= static_cast<int64_t>(pages.size() - first);
  for (; pages.size() > first; pages.pop_back())
    pool_.Release(pages.back().page, index_.Contains(pages.back().page));
}

// A sequence needs the pages of the chain: those that the tier does not copy yet are released.
void Scheduler::StopKeeping() {
  if (!keeping_) return;
  counters_.pages_lost += keeping_->chain.pages.size() - keeping_->num_given;
  ReleaseKept(keeping_->num_given);
}

void Scheduler::FinishTransfers() {
  if (tier_ == nullptr) return;
  for (const PageTier::Done& done : tier_->TakeDone()) {
    if (done.load != 0) {
      FinishLoad(done.load, done.num_loaded);
    } else {
      ++keeping_->num_done;  // pages are done in the order in which they were given
    }
  }
  KeepPages();
}

// Adds what transfers hold to `holders`.
void Scheduler::CheckTransfers(std::vector<int>& holders) const {
  int64_t held = 0;
  if (keeping_) {
    held = std::ssize(keeping_->chain.pages);
    for (const TierPage& page : keeping_->chain.pages) ++holders[static_cast<size_t>(page.page)];
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

void Scheduler::ResetPrefixCache() {
  for (auto& [id, load] : loads_) load.is_stale = true;
  offered_.clear();
  num_offered_ = 0;
  StopKeeping();
  if (tier_ != nullptr) tier_->Clear();
  ForgetPages(index_.Clear());
}

}  // namespace diffserve
