// SPDX-License-Identifier: Apache-2.0
#include "engine/step_cost.h"

#include <algorithm>

namespace diffserve {
namespace {

constexpr double kKeep = 0.98;  // about the last 50 steps count

}  // namespace

void StepCostMeter::Take(int tokens, double seconds) {
  const double n = tokens;
  weight_ = kKeep * weight_ + 1;
  tokens_ = kKeep * tokens_ + n;
  seconds_ = kKeep * seconds_ + seconds;
  tokens_squared_ = kKeep * tokens_squared_ + n * n;
  tokens_seconds_ = kKeep * tokens_seconds_ + n * seconds;
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
