// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fake_tier.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace diffserve::testing {
namespace {

void RequireOfTier(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("tier: ") + what);
}

}  // namespace

std::vector<uint64_t> FakeTier::Copy(int32_t page) const {
  const std::span<const uint64_t> content = content_(page);
  return {content.begin(), content.end()};
}

void FakeTier::Load(uint64_t load, std::vector<TierPage> pages) {
  RequireOfTier(!pages.empty(), "a load has pages");
  Loading loading{.id = load, .pages = std::move(pages), .before = {}};
  for (const TierPage& page : loading.pages) loading.before.push_back(Copy(page.page));
  loads_.push_back(std::move(loading));
}

void FakeTier::Cancel(uint64_t load) {
  const auto it = std::ranges::find(loads_, load, &Loading::id);
  if (it == loads_.end()) return;  // it is done, but not taken
  it->is_cancelled = true;
  ++counts_.cancelled;
}

void FakeTier::Keep(TierPage page) {
  RequireOfTier(num_free() > 0, "a full tier keeps nothing");
  std::vector<uint64_t> content = Copy(page.page);
  keeps_.push_back({std::move(page), std::move(content)});
}

void FakeTier::Clear() {
  pages_.clear();
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
  if (dice_.Chance(2) && !pages_.empty()) pages_.erase(pages_.begin());  // its room is needed
  if (any) wake_();
}

void FakeTier::EndLoad() {
  const Loading load = std::move(loads_.front());
  loads_.pop_front();
  Done done = {.load = load.id};
  bool right = !load.is_cancelled;
  for (size_t i = 0; i < load.pages.size(); ++i) {
    const TierPage& page = load.pages[i];
    const std::span<uint64_t> to = content_(page.page);
    RequireOfTier(std::ranges::equal(to, load.before[i]), "a page that is loaded is not written");
    const auto it = pages_.find(Pair(page.key));
    right = right && it != pages_.end() && it->second.tokens == page.tokens && !dice_.Chance(3);
    if (right) {
      std::ranges::copy(it->second.content, to.begin());
    } else {
      std::ranges::fill(to, dice_.random());  // what was read of it
    }
    done.num_loaded += right ? 1 : 0;
  }
  counts_.loaded += static_cast<uint64_t>(done.num_loaded);
  counts_.damaged += load.pages.size() - static_cast<size_t>(done.num_loaded);
  done_.push_back(done);
}

void FakeTier::EndKeep() {
  Keeping keep = std::move(keeps_.front());
  keeps_.pop_front();
  RequireOfTier(std::ranges::equal(content_(keep.page.page), keep.content),
                "a page that is kept is not written");
  if (!keep.is_stale) {
    pages_[Pair(keep.page.key)] = {std::move(keep.page.tokens), std::move(keep.content)};
    ++counts_.kept;
  }
  done_.push_back({});
}

}  // namespace diffserve::testing
