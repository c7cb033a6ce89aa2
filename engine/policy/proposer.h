// SPDX-License-Identifier: Apache-2.0
// Proposer: guesses the next tokens of a sequence from its own text ("prompt lookup"), from a
// prediction of its outputs if the client has given one, from past answers, and from what its
// constraint forces. From the text it takes the longest end that occurred before, and proposes what
// followed its latest occurrence.
// It also estimates how likely the guess is: from the length of the match, from how often the text
// went on like that, and from which guesses were right lately. A step verifies the guess, so a
// wrong one only costs time. Owned by its Sequence; no clock, no device.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/contract/guess_source.h"
#include "engine/policy/answer_history.h"
#include "engine/policy/guess_record.h"
#include "engine/policy/suffix_tree.h"

namespace diffserve {

class TokenConstraint;

struct Guess {
  std::vector<int32_t> tokens = {};
  std::vector<double> chances = {};           // [i]: that tokens 0 to i are all right; descending
  GuessSource source = GuessSource::kPrompt;  // of the first token
  int match = 0;  // length of the match that it comes from, if it comes from one

  double expected() const;  // tokens that are right
};

class Proposer {
 public:
  using Tokens = std::span<const int32_t>;
  // `prediction`: tokens that may be the outputs; may be empty.
  Proposer(int max_tokens, Tokens prompt = {}, Tokens prediction = {});

  // Reads new tokens of the text for at most `budget` operations, see SuffixTree. Returns how many
  // were used. REQUIRES: `prompt` is the constructor's; `outputs` begin with those of the last
  // call.
  int64_t Read(Tokens prompt, Tokens outputs, int64_t budget) {
    return tree_.Extend({prompt, between_, outputs}, budget);
  }
  // Returns the tokens that may follow, at most `limit`; often none. Also none while tokens are not
  // read, and if the first token is at most as likely as `chance_min`.
  Guess Propose(Tokens prompt, Tokens outputs, int limit, double chance_min = 0);
  // The same from what AnswerHistory::Find has found with `ahead` of at least `limit`. It is to be
  // asked only if the call of SearchesHistory for this step returns true.
  Guess ProposeFound(const AnswerHistory::Found& found, int limit);
  bool SearchesHistory() { return of_history_.BeginStep(); }
  // The guess that `constraint` forces, in the same way.
  Guess ProposeForced(const TokenConstraint& constraint, int limit, double chance_min);
  // Reports how many of the proposed tokens were right. REQUIRES: proposed > 0, tokens of the last
  // guess of that source.
  void Learn(GuessSource source, int proposed, int accepted);

  size_t bytes() const { return tree_.bytes(); }

 private:
  GuessSource SourceOf(Tokens prompt, int position) const;

  const int max_tokens_;
  // Without a prediction: empty. Else the prediction, so that the end of the prompt matches the
  // tokens before it and goes on with it: a break, the end of the prompt, the prediction, another
  // break, the end of the prompt.
  std::vector<int32_t> between_;
  SuffixTree tree_;
  GuessRecord of_text_, of_history_, of_forced_;
};

}  // namespace diffserve
