// SPDX-License-Identifier: Apache-2.0
// PrefixIndex: finds the full page that holds a given run of tokens. The key is the chain hash of
// all tokens up to the page's end. A hit is accepted only if the page's own tokens and its parent
// page (the one before it in the chain) match too. A hash collision therefore causes a miss, never
// a wrong page. Each cache salt has its own chains. Owned by the Scheduler.
//
// Invariants: the parent of an indexed page is indexed; no two indexed pages represent the same
// chain.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/contract/kv_event.h"
#include "engine/contract/stats.h"

namespace diffserve {

class PrefixIndex {
 public:
  struct Options {
    int num_pages = 0;
    int page_size = 0;
    uint64_t hash_key = 0;       // random in a server, so that a client cannot prepare collisions
    uint64_t hash_mask = ~0ull;  // tests use a small one to force collisions
    bool record_events = false;  // record events for TakeEvents
  };
  explicit PrefixIndex(Options options);

  // The chain hash after one more page. `parent` is the hash of the page before it, or
  // RootHash(salt).
  uint64_t RootHash(const std::string& salt) const;
  uint64_t ChainHash(uint64_t parent, std::span<const int32_t> tokens) const;

  // Identifies a page.
  struct Key {
    int32_t parent = -1;              // the page before it in the chain; -1: it is the first
    uint64_t hash = 0;                // chain hash
    std::span<const int32_t> tokens;  // [page_size]
    const std::string& salt;
  };
  // Returns the indexed page, or -1.
  int32_t Find(const Key& key) const;
  // Why Find did not find the first page of a chain. Does not tell whether another salt has it.
  MissReason WhyMissing(const Key& key) const;

  // Indexes `page`. Returns the page that represents this chain from now on: `page`, or another one
  // that already does. Returns -1 if it cannot be indexed: its parent is not indexed (any more), or
  // its hash belongs to a different chain. REQUIRES: `page` is not indexed.
  int32_t Insert(const Key& key, int32_t page);
  bool Contains(int32_t page) const { return nodes_[page].indexed; }
  // Differs whenever a page is indexed again. REQUIRES: indexed.
  uint64_t SerialOf(int32_t page) const { return nodes_[page].serial; }

  // Removes a page that the pool has reused. REQUIRES: indexed, and no page follows it.
  void Evict(int32_t page);
  // Removes the page and all pages after it in its chains, and returns them.
  std::vector<int32_t> EraseChain(int32_t page);

  // Removes and returns all pages, and forgets past evictions.
  std::vector<int32_t> Clear();

  // Returns the changes since the last call, in order. Empty without record_events.
  std::vector<KvEvent> TakeEvents() { return std::exchange(events_, {}); }

  int size() const { return static_cast<int>(by_hash_.size()); }
  void CheckInvariants() const;

 private:
  struct Node {
    bool indexed = false;
    uint64_t hash = 0;
    uint64_t serial = 0;
    int32_t parent = -1;
    std::string salt;  // for a first page; later pages inherit it
    int32_t first_child = -1, next_sibling = -1, previous_sibling = -1;
  };
  std::span<const int32_t> TokensOf(int32_t page) const;
  void Remove(int32_t page);
  void RecordStored(const Key& key);
  void RecordRemoved(uint64_t hash);

  const Options options_;
  const size_t max_remembered_evictions_;
  std::vector<Node> nodes_;      // by page
  std::vector<int32_t> tokens_;  // [num_pages, page_size]
  std::unordered_map<uint64_t, int32_t> by_hash_;
  // Recently evicted hashes, to distinguish an eviction from a prefix never seen.
  std::unordered_set<uint64_t> evicted_;
  std::deque<uint64_t> evicted_order_;
  std::vector<KvEvent> events_;
  uint64_t last_serial_ = 0;
};

}  // namespace diffserve
