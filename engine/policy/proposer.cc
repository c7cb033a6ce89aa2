// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/proposer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/contract/token_constraint.h"

namespace diffserve {
namespace {

// Tokens that occur once, so that no match spans them. Negative tokens are not proposed.
constexpr int32_t kBreakBefore = -1, kBreakAfter = -2;
constexpr size_t kPromptEnd = 16;  // tokens; a match of as many counts most

// The tokens after a match. `chance`: of each, by the record of such matches.
Guess CopyOf(const SequenceText& text, const SuffixTree::Match& match, int count, double chance) {
  Guess guess{.match = match.length};
  guess.tokens.reserve(static_cast<size_t>(count));
  guess.chances.reserve(static_cast<size_t>(count));
  double all_right = 1;
  for (int i = 0; i < count; ++i) {
    // Beyond the end of the text, the guess continues itself: a repetition goes on.
    const int from = match.next + i;
    const int32_t token = from < text.size()
                              ? text[from]
                              : guess.tokens[static_cast<size_t>(from - text.size())];
    if (token < 0) break;
    guess.tokens.push_back(token);
    all_right *= chance;
    guess.chances.push_back(all_right * match.counts[static_cast<size_t>(i) + 1] / match.counts[0]);
  }
  return guess;
}

}  // namespace

double Guess::expected() const { return std::accumulate(chances.begin(), chances.end(), 0.0); }

Proposer::Proposer(int max_tokens, Tokens prompt, Tokens prediction) : max_tokens_(max_tokens) {
  if (prediction.empty()) return;
  const Tokens end = prompt.last(std::min(prompt.size(), kPromptEnd));
  between_.reserve(2 * end.size() + prediction.size() + 2);
  between_.push_back(kBreakBefore);
  between_.insert(between_.end(), end.begin(), end.end());
  between_.insert(between_.end(), prediction.begin(), prediction.end());
  between_.push_back(kBreakAfter);
  between_.insert(between_.end(), end.begin(), end.end());
}

Guess Proposer::Propose(Tokens prompt, Tokens outputs, int limit, double chance_min) {
  const SequenceText text = {prompt, between_, outputs};
  Guess guess;
  if (!of_text_.BeginStep()) return guess;
  const int count = std::min(limit, max_tokens_);
  if (count <= 0 || tree_.size() < text.size()) return guess;
  guess.match = tree_.match_length();
  if (guess.match == 0) return guess;
  const double chance = of_text_.Chance(guess.match);
  if (chance <= chance_min) return guess;
  const SuffixTree::Match match = tree_.LongestMatch(text, count);
  guess = CopyOf(text, match, count, chance);
  guess.source = SourceOf(prompt, match.next);
  return guess;
}

Guess Proposer::ProposeFound(const AnswerHistory::Found& found, int limit) {
  if (found.match.length == 0 || limit <= 0) return {};
  const double chance = of_history_.Chance(found.match.length);
  if (chance == 0) return {};
  Guess guess = CopyOf(found.text, found.match, std::min(limit, max_tokens_), chance);
  guess.source = GuessSource::kHistory;
  return guess;
}

GuessSource Proposer::SourceOf(Tokens prompt, int position) const {
  if (position >= std::ssize(prompt) + std::ssize(between_)) return GuessSource::kOutput;
  const auto end = static_cast<int>(std::min(prompt.size(), kPromptEnd));
  const bool is_predicted = position >= std::ssize(prompt) + 1 + end &&
                            position < std::ssize(prompt) + std::ssize(between_) - 1 - end;
  return is_predicted ? GuessSource::kPrediction : GuessSource::kPrompt;
}

Guess Proposer::ProposeForced(const TokenConstraint& constraint, int limit, double chance_min) {
  Guess guess{.source = GuessSource::kGrammar};
  const int count = std::min(limit, max_tokens_);
  if (!of_forced_.BeginStep() || count <= 0) return guess;
  const double chance = of_forced_.Chance(GuessRecord::kLongMatch);
  if (chance <= chance_min) return guess;
  guess.tokens = constraint.Forced(count);
  double all_right = 1;
  for (size_t i = 0; i < guess.tokens.size(); ++i) guess.chances.push_back(all_right *= chance);
  return guess;
}

void Proposer::Learn(GuessSource source, int proposed, int accepted) {
  GuessRecord& record = source == GuessSource::kGrammar   ? of_forced_
                        : source == GuessSource::kHistory ? of_history_
                                                          : of_text_;
  record.Learn(proposed, accepted);
}

}  // namespace diffserve
