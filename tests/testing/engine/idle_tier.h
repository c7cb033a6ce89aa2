// SPDX-License-Identifier: Apache-2.0
// IdleTier: a PageTier that has nothing, loads nothing and keeps nothing. Tests override what they
// look at.
#pragma once

#include <functional>
#include <vector>

#include "engine/contract/page_tier.h"

namespace diffserve::testing {

class IdleTier : public PageTier {
 public:
  void OnDone(std::function<void()>) override {}
  bool Contains(const TierKey&, TierKind) override { return false; }
  void Load(uint64_t, std::vector<TierEntry>) override {}
  void Cancel(uint64_t) override {}
  int num_free() const override { return 0; }
  void Keep(TierEntry) override {}
  void Forget(const TierKey&) override {}
  void Clear() override {}
  std::vector<Done> TakeDone() override { return {}; }
  TierStats stats() const override { return {}; }
};

}  // namespace diffserve::testing
