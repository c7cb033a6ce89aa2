// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/attention_shares.h"

#include <algorithm>
#include <cmath>

namespace diffserve {

double Entropy(const std::vector<double>& p) {
  double entropy = 0;
  for (double value : p) entropy -= value == 0 ? 0 : value * std::log(value);
  return entropy;
}

double CancelledShare(const AttentionMaps& maps) {
  double cancelled = 0;
  for (size_t slot = 0; slot < maps.second.p.size(); ++slot)
    cancelled += std::min(maps.first.p[slot], std::max(maps.lambda * maps.second.p[slot], 0.0));
  return cancelled;
}

SpanShares SharesOn(const AttentionMaps& maps, int begin, int end) {
  SpanShares shares;
  double all = 0;
  for (size_t slot = 0; slot < maps.w.size(); ++slot) {
    all += std::abs(maps.w[slot]);
    if (static_cast<int>(slot) < begin || static_cast<int>(slot) >= end) continue;
    shares.map1 += maps.first.p[slot];
    shares.map2 += maps.second.p.empty() ? 0 : maps.second.p[slot];
    shares.difference += std::abs(maps.w[slot]);
  }
  if (all > 0) shares.difference /= all;
  return shares;
}

}  // namespace diffserve
