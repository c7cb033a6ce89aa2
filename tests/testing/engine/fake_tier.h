// SPDX-License-Identifier: Apache-2.0
// FakeTier: a PageTier without threads over the memory of a FakeExecutor. Dice decide when
// transfers end, and which loads find damaged entries. It throws std::logic_error if memory is used
// while it is loaded, or changed while it is kept.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/contract/page_tier.h"
#include "tests/testing/engine/simulated_requests.h"

namespace diffserve::testing {

class FakeTier : public PageTier {
 public:
  using Content = std::function<std::vector<std::span<uint64_t>>(const TierEntry&)>;
  struct Counts {
    uint64_t loaded = 0, damaged = 0, cancelled = 0, kept = 0, cleared = 0;
    uint64_t snapshots_loaded = 0, snapshots_kept = 0;
  };
  FakeTier(const Dice& dice, Content content) : dice_(dice), content_(std::move(content)) {}

  void OnDone(std::function<void()> wake) override { wake_ = std::move(wake); }
  bool Contains(const TierKey& key, TierKind kind) override {
    return stored_.contains({key.high, key.low, kind});
  }
  void Load(uint64_t load, std::vector<TierEntry> entries) override;
  void Cancel(uint64_t load) override;
  int num_free() const override { return kMaxKeeps - static_cast<int>(keeps_.size()); }
  void Keep(TierEntry entry) override;
  void Forget(const TierKey& key) override {
    stored_.erase({key.high, key.low, TierKind::kPage});
    stored_.erase({key.high, key.low, TierKind::kSnapshot});
  }
  void Clear() override;
  std::vector<Done> TakeDone() override { return std::exchange(done_, {}); }
  TierStats stats() const override { return {.pages = stored_.size()}; }

  // Some transfers end; at least one if `must`.
  void Advance(bool must);
  bool is_idle() const { return loads_.empty() && keeps_.empty() && done_.empty(); }
  const Counts& counts() const { return counts_; }

 private:
  static constexpr int kMaxKeeps = 4;
  struct Stored {
    std::vector<int32_t> tokens;
    std::vector<uint64_t> content;
  };
  struct Loading {
    uint64_t id = 0;
    std::vector<TierEntry> entries;
    std::vector<std::vector<uint64_t>> before;  // contents when the load began
    bool is_cancelled = false;
  };
  struct Keeping {
    TierEntry entry;
    std::vector<uint64_t> content;
    bool is_stale = false;
  };
  using Key = std::tuple<uint64_t, uint64_t, TierKind>;
  static Key KeyOf(const TierEntry& entry) { return {entry.key.high, entry.key.low, entry.kind()}; }
  std::vector<uint64_t> Copy(const TierEntry& entry) const;
  void EndLoad();
  void EndKeep();

  Dice dice_;
  const Content content_;
  std::function<void()> wake_;
  std::map<Key, Stored> stored_;
  std::deque<Loading> loads_;
  std::deque<Keeping> keeps_;
  std::vector<Done> done_;
  Counts counts_;
};

}  // namespace diffserve::testing
