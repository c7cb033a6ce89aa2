// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/attention/logit_quant.h"

namespace diffserve {
namespace {

void QuantiseSymmetric(std::span<double> logits, int levels) {
  double largest = 0;
  for (double logit : logits) largest = std::max(largest, std::abs(logit));
  if (largest == 0) return;
  for (double& logit : logits) logit = std::nearbyint(logit * levels / largest) * largest / levels;
}

void QuantiseAnchored(std::span<double> logits, int levels) {
  const double max = *std::max_element(logits.begin(), logits.end());
  for (double& logit : logits) {
    const double distance = std::min<double>(max - logit, kLogitReach);
    logit = max - kLogitReach * std::nearbyint(distance * levels / kLogitReach) / levels;
  }
}

}  // namespace

std::string_view NameOf(LogitScale scale) {
  return scale == LogitScale::kRow ? "row" : scale == LogitScale::kTile ? "tile" : "anchored";
}

void QuantiseLogitsRef(std::span<double> logits, const LogitQuant& quant, int first_slot) {
  if (!quant.is_on() || logits.empty()) return;
  switch (quant.scale) {
    case LogitScale::kRow:
      return QuantiseSymmetric(logits, quant.levels());
    case LogitScale::kTile:
      for (size_t begin = 0; begin < logits.size();) {
        const size_t in_tile = (static_cast<size_t>(first_slot) + begin) % kLogitTileSlots;
        const size_t count = std::min(kLogitTileSlots - in_tile, logits.size() - begin);
        QuantiseSymmetric(logits.subspan(begin, count), quant.levels());
        begin += count;
      }
      return;
    case LogitScale::kAnchored:
      return QuantiseAnchored(logits, quant.levels());
  }
}

}  // namespace diffserve
