// StepCost: how long steps take, seconds = overhead + tokens x per_token, fitted to the latest ones
// by least squares. On the CPU the overhead is mostly the reading of the weights, which all tokens
// of a step share. Plain numbers: whoever measures brings the seconds.
#pragma once

#include <optional>

namespace diffserve {

struct StepCost {
  double overhead_seconds = 0;
  double token_seconds = 0;  // above 0
  // Tokens that take as long as a step's overhead.
  double overhead_tokens() const { return overhead_seconds / token_seconds; }
};

class StepCostMeter {
 public:
  void Take(int tokens, double seconds);
  // nullopt until steps of different sizes were measured; then the last fit that made sense.
  const std::optional<StepCost>& cost() const { return cost_; }

 private:
  // Sums over the steps, each weighing kKeep of the one after it.
  double weight_ = 0, tokens_ = 0, seconds_ = 0, tokens_squared_ = 0, tokens_seconds_ = 0;
  std::optional<StepCost> cost_;
};

}  // namespace diffserve
