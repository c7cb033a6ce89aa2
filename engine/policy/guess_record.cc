// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/guess_record.h"

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

bool GuessRecord::BeginStep() {
  bool is_any_ready = false;
  for (Tried& entry : by_length_) {
    entry.tried *= kKeep;
    entry.right *= kKeep;
    entry.pause = std::max(0, entry.pause - 1);
    is_any_ready |= entry.pause == 0;
  }
  return is_any_ready;
}

double GuessRecord::Chance(int length) {
  static_assert(kPriors.size() == kNumLengths);
  guessed_ = IndexOf(length);
  const Tried& entry = by_length_[guessed_];
  if (entry.pause > 0) return 0;
  return (kPriorTokens * kPriors[guessed_] + entry.right) / (kPriorTokens + entry.tried);
}

void GuessRecord::Learn(int proposed, int accepted) {
  Tried& entry = by_length_[guessed_];
  entry.tried += std::min(proposed, accepted + 1);
  entry.right += accepted;
  entry.misses = accepted > 0 ? entry.misses / 2 : std::min(entry.misses + 1, kMissesMax);
  if (accepted == 0) entry.pause = 1 << entry.misses;
}

}  // namespace diffserve
