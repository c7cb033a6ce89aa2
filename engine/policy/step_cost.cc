// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/step_cost.h"

#include <algorithm>
#include <cmath>

namespace diffserve {
namespace {

// The latest seconds count, as a wait that is estimated has many steps, but at least 50 steps.
constexpr double kMemorySeconds = 5, kKeepMin = 0.98;

}  // namespace

int StepCost::TokensWithin(double seconds, int tokens_max) const {
  const double tokens = (seconds - overhead_seconds) / token_seconds;
  return static_cast<int>(std::clamp(tokens, 0.0, static_cast<double>(tokens_max)));
}

void StepCostMeter::Take(double tokens, double seconds) {
  const double keep = std::max(kKeepMin, std::exp(-seconds / kMemorySeconds));
  weight_ = keep * weight_ + 1;
  tokens_ = keep * tokens_ + tokens;
  seconds_ = keep * seconds_ + seconds;
  tokens_squared_ = keep * tokens_squared_ + tokens * tokens;
  tokens_seconds_ = keep * tokens_seconds_ + tokens * seconds;
  // Weighted variance of the sizes; steps of nearly equal size do not determine the slope.
  const double mean = tokens_ / weight_, mean_seconds = seconds_ / weight_;
  const double variance = tokens_squared_ / weight_ - mean * mean;
  if (variance >= 0.01 * mean * mean) {
    const double slope = (tokens_seconds_ / weight_ - mean * mean_seconds) / variance;
    if (slope > 0) slope_ = slope;
  }
  if (slope_ == 0) return;
  const double token_seconds = std::min(slope_, mean_seconds / mean);
  cost_ = {mean_seconds - token_seconds * mean, token_seconds};
}

}  // namespace diffserve
