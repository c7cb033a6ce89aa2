// SPDX-License-Identifier: Apache-2.0
// Proposer: guesses the next tokens of a sequence from its own text ("prompt lookup"). It takes the
// longest end of the text that occurred before, and proposes what followed its latest occurrence.
// It also estimates how likely the guess is: from the length of the match, from how often the text
// went on like that, and from which guesses were right lately. A step verifies the guess, so a
// wrong one only costs time. Owned by its Sequence; no clock, no device.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/suffix_tree.h"

namespace diffserve {

struct Guess {
  std::vector<int32_t> tokens = {};
  std::vector<double> chances = {};  // [i]: that tokens 0 to i are all right; descending
};

class Proposer {
 public:
  explicit Proposer(int max_tokens) : max_tokens_(max_tokens) {}

  // Reads new tokens of the text for at most `budget` operations, see SuffixTree. Returns how many
  // were used. REQUIRES: `text` begins with the text of the last call.
  int64_t Read(const SequenceText& text, int64_t budget) { return tree_.Extend(text, budget); }
  // Returns the tokens that may follow `text`, at most `limit`; often none, and none while tokens
  // of the text are not read.
  Guess Propose(const SequenceText& text, int limit);
  // Reports how many of the proposed tokens were right. REQUIRES: proposed > 0, tokens of the last
  // guess.
  void Learn(int proposed, int accepted);

  size_t bytes() const { return tree_.bytes(); }

 private:
  // What is known about the tokens that followed matches of similar length.
  struct Record {
    double tried = 0, right = 0;  // tokens; recent ones count most
  };
  static constexpr size_t kNumLengths = 6;  // 1, 2, 3, 4 to 7, 8 to 15, 16 and more tokens

  const int max_tokens_;
  SuffixTree tree_;
  std::array<Record, kNumLengths> records_;
  size_t guessed_ = 0;  // index of the last guess's record
  int misses_ = 0;      // guesses whose first token was wrong; a right one halves it
  int pause_ = 0;       // how many of the next calls propose nothing
};

}  // namespace diffserve
