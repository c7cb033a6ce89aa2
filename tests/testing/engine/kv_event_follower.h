// SPDX-License-Identifier: Apache-2.0
// KvEventFollower: reconstructs the pages of a prefix index from its KV events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/contract/kv_event.h"
#include "engine/policy/sequence.h"

namespace diffserve::testing {

class KvEventFollower {
 public:
  struct Page {
    std::optional<uint64_t> parent;
    std::vector<int32_t> tokens;
    std::string salt;
  };
  explicit KvEventFollower(int page_size) : page_size_(static_cast<size_t>(page_size)) {}

  const std::map<uint64_t, Page>& pages() const { return pages_; }  // by chain hash
  uint64_t num_events() const { return num_events_; }

  // Whether the pages that the sequence has in the index are known, with their tokens and salt.
  bool Knows(const Sequence& sequence) const {
    for (int i = 0; i < sequence.num_indexed_pages; ++i) {
      const auto known = pages_.find(sequence.page_hashes[static_cast<size_t>(i)]);
      const auto tokens = sequence.PageTokens(i, static_cast<int>(page_size_));
      if (known == pages_.end() || known->second.salt != sequence.request.cache_salt ||
          !std::ranges::equal(known->second.tokens, tokens))
        return false;
    }
    return true;
  }

  // Returns the fault of the event, or "".
  std::string Take(const KvEvent& event) {
    ++num_events_;
    if (event.kind == KvEvent::Kind::kCleared) {
      pages_.clear();
      return event.hashes.empty() && event.tokens.empty() ? "" : "13: all pages need no names";
    }
    const bool stored = event.kind == KvEvent::Kind::kStored;
    if (event.hashes.empty()) return "13: an event tells of a page";
    if (event.tokens.size() != (stored ? event.hashes.size() * page_size_ : 0))
      return "13: a stored page has its tokens";
    std::optional<uint64_t> parent = event.parent;
    for (size_t i = 0; i < event.hashes.size(); ++i) {
      const uint64_t hash = event.hashes[i];
      if (!stored) {
        const auto hangs_on_it = [&](const auto& entry) { return entry.second.parent == hash; };
        if (pages_.erase(hash) == 0) return "13: what is removed was there";
        if (std::ranges::any_of(pages_, hangs_on_it)) return "13: the end of a chain leaves first";
        continue;
      }
      if (parent && !pages_.contains(*parent)) return "13: what is stored hangs on what is there";
      const auto begin = event.tokens.begin() + static_cast<ptrdiff_t>(i * page_size_);
      Page page{parent,
                {begin, begin + static_cast<ptrdiff_t>(page_size_)},
                parent ? pages_[*parent].salt : event.salt};
      if (!pages_.emplace(hash, std::move(page)).second) return "13: a page is stored once";
      parent = hash;
    }
    return {};
  }

 private:
  const size_t page_size_;
  std::map<uint64_t, Page> pages_;
  uint64_t num_events_ = 0;
};

}  // namespace diffserve::testing
