// SPDX-License-Identifier: Apache-2.0
// SuffixTree: finds the longest end of a text that occurred in it before, while the text grows
// (Ukkonen's algorithm). It finds what a suffix automaton finds, but no transitions are copied and
// leaves are not stored. All edges share one hash table. Owned by a Proposer or an
// AnswerHistory; no clock, no device.
//
// Costs. A token takes some 30 bytes, at most 84, in addition to the text itself. The operations of
// all calls together are linear in the text: each of the at most 2n nodes is added once, and an
// added leaf updates at most kCountedMax nodes above it. One token may add many leaves, so Extend
// stops within a token when its budget is used up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace diffserve {

// The tokens of a sequence, and between prompt and outputs others that matches are sought in.
struct SequenceText {
  std::span<const int32_t> prompt = {}, between = {}, outputs = {};
  int size() const { return static_cast<int>(prompt.size() + between.size() + outputs.size()); }
  int32_t operator[](int i) const {
    auto index = static_cast<size_t>(i);
    if (index < prompt.size()) return prompt[index];
    index -= prompt.size();
    return index < between.size() ? between[index] : outputs[index - between.size()];
  }
};

class SuffixTree {
 public:
  // An occurrence of the text's last tokens before its end.
  struct Match {
    int length = 0;  // tokens; 0: the last token is new
    int next = 0;    // position after the latest occurrence
    // [i]: how many occurrences go on for i tokens like the latest one.
    std::vector<int> counts = {};
  };

  // Adds the tokens after the first size() of `text`, as many as `budget` operations reach. The
  // last operation may exceed the budget by a doubling of the table. Returns the operations used.
  // REQUIRES: `text` begins with the text of the last call.
  int64_t Extend(const SequenceText& text, int64_t budget);
  int size() const { return size_; }  // tokens that the tree contains

  // Length of the longest match. REQUIRES: as LongestMatch.
  int match_length() const { return pending_; }
  // The longest match, and counts of up to `ahead` tokens after it. `next` and `counts` are exact
  // unless more than kCountedMax branches lie below the match; then they can lack occurrences.
  // REQUIRES: size() == text.size().
  Match LongestMatch(const SequenceText& text, int ahead);

  // Whether `tokens` occur in the text that the tree contains. REQUIRES: `text` begins with that of
  // Extend's last call.
  bool Contains(const SequenceText& text, std::span<const int32_t> tokens) {
    return !nodes_.empty() && Locate(text, tokens).has_value();
  }
  // The match of `tokens` instead of the text's last ones, in the same way. REQUIRES: Contains.
  Match MatchOf(const SequenceText& text, std::span<const int32_t> tokens, int ahead) {
    return Describe(text, *Locate(text, tokens), static_cast<int>(tokens.size()), ahead);
  }

  static constexpr int64_t kBytesPerTokenMax = 84;
  size_t bytes() const {
    return edges_.capacity() * sizeof(Edge) + nodes_.capacity() * sizeof(Node);
  }

 private:
  static constexpr int kRoot = 0;
  static constexpr int kCountedMax = 64;
  // A child is a node, or a leaf: ~(position where its suffix begins).
  struct Node {
    int32_t depth = 0;  // tokens from the root
    int32_t parent = kRoot;
    int32_t link = kRoot;  // the node of the same tokens without the first
    int32_t latest = 0;    // where its latest occurrence begins
    int32_t count = 0;     // occurrences
  };
  struct Edge {
    int32_t parent = kRoot;
    int32_t child = kRoot;  // kRoot: a free entry
  };

  static bool IsLeaf(int32_t child) { return child < 0; }
  Node& NodeOf(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  int32_t LatestOf(int32_t child) { return IsLeaf(child) ? ~child : NodeOf(child).latest; }
  int32_t CountOf(int32_t child) { return IsLeaf(child) ? 1 : NodeOf(child).count; }

  void ExtendOnce(const SequenceText& text);
  bool Descend(int32_t child);
  void LinkTo(int32_t node);
  int32_t Split(const SequenceText& text, Edge& edge);
  void AddLeaf(const SequenceText& text, int32_t parent, int32_t begin);
  Edge* Find(const SequenceText& text, int32_t parent, int32_t token);
  std::optional<int32_t> Locate(const SequenceText& text, std::span<const int32_t> tokens);
  Match Describe(const SequenceText& text, int32_t below, int length, int ahead);
  void Insert(const SequenceText& text, Edge edge);
  void Grow(const SequenceText& text, size_t places);
  size_t PlaceOf(int32_t parent, int32_t token) const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;  // open addressing; the size is a power of two
  size_t num_edges_ = 0;
  int size_ = 0;
  int64_t operations_ = 0;  // of the current call
  // The suffixes that have no leaf yet are the last `pending_` ones. The longest of them ends
  // `active_length_` tokens below `active_node_`, on the edge that begins like the text at
  // `active_begin_`.
  int pending_ = 0;
  int32_t active_node_ = kRoot;
  int active_begin_ = 0, active_length_ = 0;
  int32_t unlinked_ = kRoot;   // the node added last, until its link is known; kRoot: none
  bool within_token_ = false;  // some suffixes do not contain the token at size_ yet
};

}  // namespace diffserve
