// PrefixIndex: which full pages hold which run of tokens. A page is found by the chain hash of all
// tokens up to its end, and believed only if its own tokens and its parent page (the one before it
// in the chain) are the wanted ones too, so that a collision of hashes costs a miss and never
// serves a wrong page. Each cache salt has chains of its own. Owned by the Scheduler.
//
// Invariants: the parent of an indexed page is indexed; two indexed pages never stand for the same
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

#include "engine/kv_event.h"
#include "engine/stats.h"

namespace diffserve {

class PrefixIndex {
 public:
  struct Options {
    int num_pages = 0;
    int page_size = 0;
    uint64_t hash_key = 0;       // random in a server, so that a client cannot prepare collisions
    uint64_t hash_mask = ~0ull;  // tests make collisions with a small one
    bool record_events = false;  // keep what happens for TakeEvents
  };
  explicit PrefixIndex(Options options);

  // The chain hash of one more page. `parent` is the hash of the page before it, or RootHash(salt).
  uint64_t RootHash(const std::string& salt) const;
  uint64_t ChainHash(uint64_t parent, std::span<const int32_t> tokens) const;

  // What a page is found by.
  struct Key {
    int32_t parent = -1;              // the page before it in the chain, -1: the first
    uint64_t hash = 0;                // chain hash
    std::span<const int32_t> tokens;  // [page_size]
    const std::string& salt;
  };
  // The indexed page, or -1.
  int32_t Find(const Key& key) const;
  // Why Find did not find the first page of a chain.
  MissReason WhyMissing(const Key& key) const;

  // Indexes `page`. Returns the page that stands for this chain from now on: `page`, or another one
  // that already did. -1: it cannot be indexed, as its parent is not (any more) or its hash is
  // taken by a different chain. REQUIRES: `page` is not indexed.
  int32_t Insert(const Key& key, int32_t page);
  bool Contains(int32_t page) const { return nodes_[page].indexed; }

  // The pool gave the page away. REQUIRES: indexed, no page follows it.
  void Evict(int32_t page);
  // Takes the page and all that follow it out, and returns them.
  std::vector<int32_t> EraseChain(int32_t page);

  // Takes all pages out, and returns them; of evictions nothing is remembered.
  std::vector<int32_t> Clear();

  // What entered and left since the last call, in order. Empty without record_events.
  std::vector<KvEvent> TakeEvents() { return std::exchange(events_, {}); }

  int size() const { return static_cast<int>(by_hash_.size()); }
  void CheckInvariants() const;

 private:
  struct Node {
    bool indexed = false;
    uint64_t hash = 0;
    int32_t parent = -1;
    uint64_t unsalted = 0;  // for a first page: the hash of its tokens alone
    std::string salt;       // for a first page; the others have it through their parent
    int32_t first_child = -1, next_sibling = -1, previous_sibling = -1;
  };
  std::span<const int32_t> TokensOf(int32_t page) const;
  uint64_t UnsaltedHash(std::span<const int32_t> tokens) const;
  void Remove(int32_t page);
  void RecordStored(const Key& key);
  void RecordRemoved(uint64_t hash);

  const Options options_;
  const size_t max_remembered_evictions_;
  std::vector<Node> nodes_;      // by page
  std::vector<int32_t> tokens_;  // [num_pages, page_size]
  std::unordered_map<uint64_t, int32_t> by_hash_;
  std::unordered_map<uint64_t, int> first_pages_;  // unsalted hash -> how many salts have it
  // Hashes evicted not long ago, to tell an eviction from a prefix never seen.
  std::unordered_set<uint64_t> evicted_;
  std::deque<uint64_t> evicted_order_;
  std::vector<KvEvent> events_;
};

}  // namespace diffserve
