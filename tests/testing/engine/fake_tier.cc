// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/engine/fake_tier.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace diffserve::testing {
namespace {

void RequireOfTier(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("tier: ") + what);
}

}  // namespace

std::vector<uint64_t> FakeTier::Copy(const TierEntry& entry) const {
  std::vector<uint64_t> copy;
  for (const std::span<const uint64_t> part : content_(entry))
    copy.insert(copy.end(), part.begin(), part.end());
  return copy;
}

void FakeTier::Load(uint64_t load, std::vector<TierEntry> entries) {
  RequireOfTier(!entries.empty(), "a load has entries");
  Loading loading{.id = load, .entries = std::move(entries), .before = {}};
  for (const TierEntry& entry : loading.entries) loading.before.push_back(Copy(entry));
  loads_.push_back(std::move(loading));
}

void FakeTier::Cancel(uint64_t load) {
  const auto it = std::ranges::find(loads_, load, &Loading::id);
  if (it == loads_.end()) return;  // it is done, but not taken
  it->is_cancelled = true;
  ++counts_.cancelled;
}

void FakeTier::Keep(TierEntry entry) {
  RequireOfTier(num_free() > 0, "a full tier keeps nothing");
  std::vector<uint64_t> content = Copy(entry);
  keeps_.push_back({std::move(entry), std::move(content)});
}

void FakeTier::Clear() {
  stored_.clear();
  for (Keeping& keep : keeps_) keep.is_stale = true;
  ++counts_.cleared;
}

void FakeTier::Advance(bool must) {
  bool any = false;
  while (!loads_.empty() && (dice_.Chance(30) || (must && !any))) {
    EndLoad();
    any = true;
  }
  while (!keeps_.empty() && (dice_.Chance(30) || (must && !any))) {
    EndKeep();
    any = true;
  }
  if (dice_.Chance(2) && !stored_.empty()) stored_.erase(stored_.begin());  // its room is needed
  if (any) wake_();
}

void FakeTier::EndLoad() {
  const Loading load = std::move(loads_.front());
  loads_.pop_front();
  Done done = {.load = load.id};
  bool right = !load.is_cancelled;
  for (size_t i = 0; i < load.entries.size(); ++i) {
    const TierEntry& entry = load.entries[i];
    RequireOfTier(Copy(entry) == load.before[i], "what is loaded is not written");
    const auto it = stored_.find(KeyOf(entry));
    right = right && it != stored_.end() && it->second.tokens == entry.tokens && !dice_.Chance(3);
    size_t done_values = 0;
    for (const std::span<uint64_t> part : content_(entry)) {
      for (uint64_t& value : part)
        value = right ? it->second.content[done_values++] : dice_.random();
    }
    done.num_loaded += right ? 1 : 0;
    counts_.snapshots_loaded += right && entry.kind() == TierKind::kSnapshot ? 1 : 0;
  }
  counts_.loaded += static_cast<uint64_t>(done.num_loaded);
  counts_.damaged += load.entries.size() - static_cast<size_t>(done.num_loaded);
  done_.push_back(done);
}

void FakeTier::EndKeep() {
  Keeping keep = std::move(keeps_.front());
  keeps_.pop_front();
  RequireOfTier(Copy(keep.entry) == keep.content, "what is kept is not written");
  if (!keep.is_stale) {
    counts_.snapshots_kept += keep.entry.kind() == TierKind::kSnapshot ? 1 : 0;
    stored_[KeyOf(keep.entry)] = {std::move(keep.entry.tokens), std::move(keep.content)};
    ++counts_.kept;
  }
  done_.push_back({});
}

}  // namespace diffserve::testing
