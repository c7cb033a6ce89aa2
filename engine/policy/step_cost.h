// SPDX-License-Identifier: Apache-2.0
// StepCost: a model of step time, seconds = overhead + tokens x per_token, fitted to the latest
// steps by least squares. On the CPU the overhead is mostly the time to read the weights, which all
// tokens of a step share. No clock: the caller supplies elapsed seconds.
#pragma once

#include <optional>

namespace diffserve {

struct StepCost {
  double overhead_seconds = 0;
  double token_seconds = 0;  // above 0
  // How many tokens take as long as a step's overhead.
  double overhead_tokens() const { return overhead_seconds / token_seconds; }
  // The most tokens of a step that ends within `seconds`, from 0 to `tokens_max`.
  int TokensWithin(double seconds, int tokens_max) const;
};

class StepCostMeter {
 public:
  void Take(double tokens, double seconds);
  // The last plausible slope through the mean of the latest steps; nullopt until steps of different
  // sizes were measured.
  const std::optional<StepCost>& cost() const { return cost_; }

 private:
  // Weighted sums over the steps; a step's weight decays with the time of the steps after it.
  double weight_ = 0, tokens_ = 0, seconds_ = 0, tokens_squared_ = 0, tokens_seconds_ = 0;
  double slope_ = 0;  // seconds per token; 0: not known yet
  std::optional<StepCost> cost_;
};

}  // namespace diffserve
