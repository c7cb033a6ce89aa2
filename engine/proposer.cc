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

}  // namespace

Guess Proposer::Propose(const SequenceText& text, int limit) {
  static_assert(kPriors.size() == kNumLengths);
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
  double all_right = 1;
  for (int i = 0; i < count; ++i) {
    // Beyond the end of the text, the guess continues itself: a repetition goes on.
    const int from = match.next + i;
    guess.tokens.push_back(
        from < text.size() ? text[from] : guess.tokens[static_cast<size_t>(from - text.size())]);
    all_right *= chance;
    guess.chances.push_back(all_right * match.counts[static_cast<size_t>(i) + 1] / match.counts[0]);
  }
  return guess;
}

void Proposer::Learn(int proposed, int accepted) {
  Record& record = records_[guessed_];
  record.tried += std::min(proposed, accepted + 1);
  record.right += accepted;
  misses_ = accepted > 0 ? misses_ / 2 : std::min(misses_ + 1, kMissesMax);
  if (accepted == 0) pause_ = (1 << misses_) - 1;
}

}  // namespace diffserve
