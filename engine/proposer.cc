// SPDX-License-Identifier: Apache-2.0
#include "engine/proposer.h"

#include <algorithm>
#include <bit>

namespace diffserve {
namespace {

constexpr int kMissesMax = 8;
// How likely a token after a match is right, by the match's length. Each counts like kPriorTokens
// tokens that were tried.
constexpr std::array<double, 6> kPriors = {0.05, 0.2, 0.4, 0.6, 0.8, 0.9};
constexpr double kPriorTokens = 4;
// What was tried half a thousand tokens ago hardly counts, so a text that begins to repeat itself
// is noticed.
constexpr double kKeep = 1 - 1.0 / 256;

size_t IndexOf(int length) {
  const int index = length < 4 ? length - 1 : std::bit_width(static_cast<unsigned>(length));
  return std::min(static_cast<size_t>(index), kPriors.size() - 1);
}

// Tokens that occur once, so that no match spans them. They are not proposed.
constexpr int32_t kBreakBefore = -1, kBreakAfter = -2;
constexpr size_t kPromptEnd = 16;  // tokens; a match of as many counts most

}  // namespace

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
  static_assert(kPriors.size() == kNumLengths);
  const SequenceText text = {prompt, between_, outputs};
  Guess guess;
  for (Record& record : records_) record = {kKeep * record.tried, kKeep * record.right};
  if (pause_ > 0) {
    --pause_;
    return guess;
  }
  const int count = std::min(limit, max_tokens_);
  if (count <= 0 || tree_.size() < text.size()) return guess;
  const SuffixTree::Match match = tree_.LongestMatch(text, count);
  if (match.length == 0) return guess;
  guessed_ = IndexOf(match.length);
  const Record& record = records_[guessed_];
  const double chance = (kPriorTokens * kPriors[guessed_] + record.right) /
                        (kPriorTokens + record.tried);
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

void Proposer::Learn(int proposed, int accepted) {
  Record& record = records_[guessed_];
  record.tried += std::min(proposed, accepted + 1);
  record.right += accepted;
  misses_ = accepted > 0 ? misses_ / 2 : std::min(misses_ + 1, kMissesMax);
  if (accepted == 0) pause_ = (1 << misses_) - 1;
}

}  // namespace diffserve
