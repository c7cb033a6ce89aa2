// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/prefix_index.h"

#include <algorithm>

#include "kernels/process/check.h"
#include "kernels/process/random_bits.h"

namespace diffserve {
namespace {

constexpr uint64_t kSaltDomain = 0x5a17;

}  // namespace

PrefixIndex::PrefixIndex(Options options)
    : options_(options),
      max_remembered_evictions_(std::max<size_t>(1024, 4 * static_cast<size_t>(options.num_pages))),
      nodes_(options.num_pages),
      tokens_(static_cast<size_t>(options.num_pages) * options.page_size) {
  DS_CHECK(options.num_pages > 0 && options.page_size > 0,
           "an index of at least one page with at least one slot");
}

uint64_t PrefixIndex::RootHash(const std::string& salt) const {
  uint64_t hash = SplitMix64(options_.hash_key ^ kSaltDomain);
  for (unsigned char c : salt) hash = SplitMix64(hash ^ c);
  return SplitMix64(hash ^ salt.size()) & options_.hash_mask;
}

uint64_t PrefixIndex::ChainHash(uint64_t parent, std::span<const int32_t> tokens) const {
  uint64_t hash = SplitMix64(parent ^ options_.hash_key);
  for (int32_t token : tokens) hash = SplitMix64(hash ^ static_cast<uint32_t>(token));
  return hash & options_.hash_mask;
}

std::span<const int32_t> PrefixIndex::TokensOf(int32_t page) const {
  return {tokens_.data() + static_cast<size_t>(page) * options_.page_size,
          static_cast<size_t>(options_.page_size)};
}

int32_t PrefixIndex::Find(const Key& key) const {
  const auto it = by_hash_.find(key.hash);
  if (it == by_hash_.end()) return -1;
  const Node& node = nodes_[it->second];
  const bool same = node.parent == key.parent &&
                    std::ranges::equal(TokensOf(it->second), key.tokens) &&
                    (key.parent >= 0 || node.salt == key.salt);
  return same ? it->second : -1;
}

MissReason PrefixIndex::WhyMissing(const Key& key) const {
  return evicted_.contains(key.hash) ? MissReason::kEvicted : MissReason::kNoPrefix;
}

int32_t PrefixIndex::Insert(const Key& key, int32_t page) {
  DS_CHECK(!Contains(page), "a page is indexed once");
  DS_CHECK(key.tokens.size() == static_cast<size_t>(options_.page_size),
           "only full pages are indexed");
  if (key.parent >= 0 && !Contains(key.parent)) return -1;
  if (by_hash_.contains(key.hash)) return Find(key);
  Node& node = nodes_[page];
  node = Node{};
  node.indexed = true;
  node.hash = key.hash;
  node.serial = ++last_serial_;
  node.parent = key.parent;
  std::ranges::copy(key.tokens,
                    tokens_.begin() + static_cast<ptrdiff_t>(page) * options_.page_size);
  if (key.parent < 0) {
    node.salt = key.salt;
  } else {
    node.next_sibling = nodes_[key.parent].first_child;
    if (node.next_sibling >= 0) nodes_[node.next_sibling].previous_sibling = page;
    nodes_[key.parent].first_child = page;
  }
  by_hash_[key.hash] = page;
  evicted_.erase(key.hash);
  if (options_.record_events) RecordStored(key);
  return page;
}

// Extends the last event if the page continues its chain.
void PrefixIndex::RecordStored(const Key& key) {
  const std::optional<uint64_t> parent = key.parent < 0 ? std::nullopt
                                                        : std::optional(nodes_[key.parent].hash);
  const bool continues = !events_.empty() && events_.back().kind == KvEvent::Kind::kStored &&
                         parent == events_.back().hashes.back();
  if (!continues) {
    KvEvent& event = events_.emplace_back();
    event.parent = parent;
    if (!parent) event.salt = key.salt;
  }
  events_.back().hashes.push_back(key.hash);
  events_.back().tokens.insert(events_.back().tokens.end(), key.tokens.begin(), key.tokens.end());
}

void PrefixIndex::RecordRemoved(uint64_t hash) {
  if (events_.empty() || events_.back().kind != KvEvent::Kind::kRemoved)
    events_.emplace_back().kind = KvEvent::Kind::kRemoved;
  events_.back().hashes.push_back(hash);
}

void PrefixIndex::Remove(int32_t page) {
  Node& node = nodes_[page];
  DS_CHECK(node.indexed && node.first_child < 0, "the last page of a chain leaves first");
  if (node.parent >= 0) {
    int32_t& link = node.previous_sibling >= 0 ? nodes_[node.previous_sibling].next_sibling
                                               : nodes_[node.parent].first_child;
    link = node.next_sibling;
    if (node.next_sibling >= 0) nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  }
  by_hash_.erase(node.hash);
  if (options_.record_events) RecordRemoved(node.hash);
  node = Node{};
}

void PrefixIndex::Evict(int32_t page) {
  const uint64_t hash = nodes_[page].hash;
  Remove(page);
  if (evicted_.insert(hash).second) evicted_order_.push_back(hash);
  while (evicted_order_.size() > max_remembered_evictions_) {
    evicted_.erase(evicted_order_.front());
    evicted_order_.pop_front();
  }
}

std::vector<int32_t> PrefixIndex::EraseChain(int32_t page) {
  std::vector<int32_t> chain = {page};
  for (size_t i = 0; i < chain.size(); ++i) {
    for (int32_t child = nodes_[chain[i]].first_child; child >= 0;
         child = nodes_[child].next_sibling)
      chain.push_back(child);
  }
  for (size_t i = chain.size(); i-- > 0;) Remove(chain[i]);
  return chain;
}

std::vector<int32_t> PrefixIndex::Clear() {
  std::vector<int32_t> pages;
  for (const auto& [hash, page] : by_hash_) pages.push_back(page);
  std::ranges::sort(pages);  // the order must not depend on the hashes
  for (const int32_t page : pages) nodes_[page] = Node{};
  by_hash_.clear();
  evicted_.clear();
  evicted_order_.clear();
  if (options_.record_events) events_.emplace_back().kind = KvEvent::Kind::kCleared;
  return pages;
}

void PrefixIndex::CheckInvariants() const {
  size_t indexed = 0;
  for (int32_t page = 0; page < static_cast<int32_t>(nodes_.size()); ++page) {
    const Node& node = nodes_[page];
    if (!node.indexed) continue;
    ++indexed;
    DS_CHECK(node.parent < 0 || nodes_[node.parent].indexed,
             "the parent of an indexed page is indexed");
    const auto it = by_hash_.find(node.hash);
    DS_CHECK(it != by_hash_.end() && it->second == page, "an indexed page is found by its hash");
  }
  DS_CHECK(indexed == by_hash_.size(), "every hash leads to an indexed page");
  DS_CHECK(evicted_.size() <= evicted_order_.size() &&
               evicted_order_.size() <= max_remembered_evictions_,
           "the memory of evictions is bounded");
}

}  // namespace diffserve
