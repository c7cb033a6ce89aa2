// Proposer: guesses what follows in a sequence from the sequence's own text ("prompt lookup"): the
// longest run of its last tokens, 4 down to 2, that stood there before, and of several such places
// the latest, is taken to be followed by the same tokens again. A step verifies the guess, so a
// wrong one costs time and nothing else; after one, less is guessed for a while. Owned by its
// Sequence; no clock, no device.
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

  // What may follow `text`, at most `limit` tokens; often nothing. The cost grows with the tokens
  // that are new since the call before, not with the text. REQUIRES: `text` begins with that of the
  // call before.
  std::vector<int32_t> Propose(const Text& text, int limit);
  // How many of the last proposal's tokens, of which there was at least one, were right.
  void Learn(int proposed, int accepted);

 private:
  static constexpr int kShortest = 2, kLongest = 4;
  // Open addressing; a place holds the position behind the latest occurrence of a run of tokens, 0
  // is a free one. A power of two in size, at least twice the entries.
  using Table = std::vector<int32_t>;

  int32_t& PlaceOf(const Text& text, int run, int end, uint64_t hash);
  void Enter(const Text& text);

  const int max_tokens_;
  int length_;       // of proposals now
  int misses_ = 1;   // proposals that were wrong at once; a right one halves it. Not 0 at first, so
                     // that the first proposal rests on three tokens at least
  int pause_ = 0;    // so many calls propose nothing
  int entered_ = 0;  // the runs that end before so many tokens are in the tables
  Table tables_[kLongest - kShortest + 1];  // by length of the run
};

}  // namespace diffserve
