// SPDX-License-Identifier: Apache-2.0
// DraftWork: what the draft model does for a sequence in a step. The draft model is a smaller model
// with the same tokens. Its K and V are in pages with the same ids as the model's, in memory of its
// own. Numbers only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace diffserve {

// A proposed token of which the plan says only that the draft model guesses it, when the step is
// launched.
inline constexpr int32_t kGuessedByDraft = -2;

// Before the step itself, the draft model computes tokens [first, end). Then it guesses `guesses`
// tokens, one by one, and computes each but the last to make the next one.
struct DraftWork {
  int first = 0;    // tokens whose K and V of the draft model are in the pages
  int end = 0;      // with guesses: the position after the last known token
  int guesses = 0;  // the sequence's proposed tokens
  bool empty() const { return first == end; }
  int computed_end() const { return end + std::max(0, guesses - 1); }
};

// The draft model's work in a step. A pass computes the next tokens of all its sequences.
struct DraftLoad {
  int passes = 0;
  int tokens = 0;  // of all passes
  void Add(const DraftWork& work) {
    if (work.empty()) return;
    passes = std::max({passes, 1, work.guesses});
    tokens += work.computed_end() - work.first;
  }
};

}  // namespace diffserve
