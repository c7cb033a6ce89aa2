// SPDX-License-Identifier: Apache-2.0
// Proposer: guesses the next tokens of a sequence from its own text ("prompt lookup"). It finds the
// longest run of the last tokens (4 down to 2) that occurred earlier, takes the latest such
// occurrence, and proposes the tokens that followed it. A step verifies the guess, so a wrong one
// only costs time; after a wrong guess it proposes less for a while. Owned by its Sequence; no
// clock, no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace diffserve {

class Proposer {
 public:
  // The tokens of a sequence.
  struct Text {
    std::span<const int32_t> prompt, outputs;
    int size() const { return static_cast<int>(prompt.size() + outputs.size()); }
    int32_t operator[](int i) const {
      const auto index = static_cast<size_t>(i);
      return index < prompt.size() ? prompt[index] : outputs[index - prompt.size()];
    }
  };

  explicit Proposer(int max_tokens) : max_tokens_(max_tokens), length_(max_tokens) {}

  // Returns the tokens that may follow `text`, at most `limit`; often none. The cost is linear in
  // the tokens added since the last call, not in the text. REQUIRES: `text` begins with the text of
  // the last call.
  std::vector<int32_t> Propose(const Text& text, int limit);
  // Reports how many tokens of the last proposal were right. REQUIRES: proposed > 0.
  void Learn(int proposed, int accepted);

 private:
  static constexpr int kShortest = 2, kLongest = 4;
  // A hash table with open addressing. An entry holds the position after the latest occurrence of a
  // run of tokens; 0 is a free entry. The size is a power of two, at least twice the number of
  // entries.
  using Table = std::vector<int32_t>;

  int32_t& EntryOf(const Text& text, int run, int end, uint64_t hash);
  void Enter(const Text& text);

  const int max_tokens_;
  int length_;       // current length of proposals
  int misses_ = 1;   // proposals whose first token was wrong; a right one halves it. Starts at 1,
                     // so that the first proposal needs a run of at least three tokens
  int pause_ = 0;    // how many of the next calls propose nothing
  int entered_ = 0;  // the tables hold all runs that end before this position
  Table tables_[kLongest - kShortest + 1];  // by run length
};

}  // namespace diffserve
