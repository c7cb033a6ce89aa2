// SPDX-License-Identifier: Apache-2.0
#include "engine/proposer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/token_constraint.h"

namespace diffserve {
namespace {

// Tokens that occur once, so that no match spans them. They are not proposed.
constexpr int32_t kBreakBefore = -1, kBreakAfter = -2;
constexpr size_t kPromptEnd = 16;  // tokens; a match of as many counts most

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

Guess Proposer::Propose(Tokens prompt, Tokens outputs, int limit) {
  const SequenceText text = {prompt, between_, outputs};
  Guess guess;
  if (!of_text_.BeginStep()) return guess;
  const int count = std::min(limit, max_tokens_);
  if (count <= 0 || tree_.size() < text.size()) return guess;
  const SuffixTree::Match match = tree_.LongestMatch(text, count);
  if (match.length == 0) return guess;
  const double chance = of_text_.Chance(match.length);
  guess.source = SourceOf(prompt, match.next);
  guess.tokens.reserve(static_cast<size_t>(count));
  guess.chances.reserve(static_cast<size_t>(count));
  double all_right = 1;
  for (int i = 0; i < count; ++i) {
    // Beyond the end of the text, the guess continues itself: a repetition goes on.
    const int from = match.next + i;
    const int32_t token = from < text.size()
                              ? text[from]
                              : guess.tokens[static_cast<size_t>(from - text.size())];
    if (token == kBreakBefore || token == kBreakAfter) break;
    guess.tokens.push_back(token);
    all_right *= chance;
    guess.chances.push_back(all_right * match.counts[static_cast<size_t>(i) + 1] / match.counts[0]);
  }
  return guess;
}

GuessSource Proposer::SourceOf(Tokens prompt, int position) const {
  if (position >= std::ssize(prompt) + std::ssize(between_)) return GuessSource::kOutput;
  const auto end = static_cast<int>(std::min(prompt.size(), kPromptEnd));
  const bool is_predicted = position >= std::ssize(prompt) + 1 + end &&
                            position < std::ssize(prompt) + std::ssize(between_) - 1 - end;
  return is_predicted ? GuessSource::kPrediction : GuessSource::kPrompt;
}

Guess Proposer::ProposeForced(TokenConstraint& constraint, int limit) {
  Guess guess{.source = GuessSource::kGrammar};
  const int count = std::min(limit, max_tokens_);
  if (!of_forced_.BeginStep() || count <= 0) return guess;
  guess.tokens = constraint.Forced(count);
  const double chance = of_forced_.Chance(GuessRecord::kLongMatch);
  double all_right = 1;
  for (size_t i = 0; i < guess.tokens.size(); ++i) guess.chances.push_back(all_right *= chance);
  return guess;
}

void Proposer::Learn(GuessSource source, int proposed, int accepted) {
  GuessRecord& record = source == GuessSource::kGrammar ? of_forced_ : of_text_;
  record.Learn(proposed, accepted);
}

}  // namespace diffserve
