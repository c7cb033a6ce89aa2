// SPDX-License-Identifier: Apache-2.0
// GuessRecord: how likely the guesses of one kind are right, learned from those that a step has
// verified. After wrong guesses it pauses for a while with matches of that length. Owned by a
// Proposer.
#pragma once

#include <array>
#include <cstddef>

namespace diffserve {

class GuessRecord {
 public:
  static constexpr int kLongMatch = 16;  // tokens; longer matches are as likely right

  // Begins a step. False: matches of all lengths pause in it.
  bool BeginStep();
  // How likely each token of a guess is right if those before it are. `length`: of the match that
  // it comes from, in tokens. 0: such matches pause. REQUIRES: length > 0.
  double Chance(int length);
  // Reports how many tokens of the guess of the last Chance were right. REQUIRES: proposed > 0.
  void Learn(int proposed, int accepted);

 private:
  // What is known about the tokens that followed matches of similar length.
  struct Tried {
    double tried = 0, right = 0;  // tokens; recent ones count most
    int misses = 0;               // guesses whose first token was wrong; a right one halves it
    int pause = 0;                // how many of the next steps have no such guess
  };
  static constexpr size_t kNumLengths = 6;  // 1, 2, 3, 4 to 7, 8 to 15, 16 and more tokens

  std::array<Tried, kNumLengths> by_length_;
  size_t guessed_ = 0;  // index of the last guess's entry
};

}  // namespace diffserve
