// SPDX-License-Identifier: Apache-2.0
// DraftRecord: how often the guesses of a draft model were right, for one sequence or for all.
// DraftCost: what they cost. No clock, no device.
#pragma once

namespace diffserve {

// In tokens of a step of the model: what a pass of the draft model costs, and each of its tokens.
struct DraftCost {
  double pass = 0;
  double token = 0;
};

class DraftRecord {
 public:
  // The chance that a guessed token is right, if those before it are. `expected`: the chance where
  // nothing was tried.
  double Chance(double expected) const {
    return (kExpectedTokens * expected + right_) / (kExpectedTokens + tried_);
  }
  // Reports how many of the guessed tokens were right. REQUIRES: guessed > 0.
  void Learn(int guessed, int accepted) {
    tried_ += guessed > accepted ? accepted + 1 : accepted;
    right_ += accepted;
  }
  // Forgets a little; called once per step. So a draft that does not pay is tried again, but for
  // less than kExpectedTokens / kMemorySteps tokens per step.
  void Fade() {
    constexpr double kKeep = 1 - 1.0 / kMemorySteps;
    tried_ *= kKeep;
    right_ *= kKeep;
  }

 private:
  static constexpr double kExpectedTokens = 4;  // the expected chance counts like as many tokens
  static constexpr double kMemorySteps = 512;
  double tried_ = 0, right_ = 0;  // tokens; recent ones count most
};

}  // namespace diffserve
