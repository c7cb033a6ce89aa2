// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/suffix_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace diffserve {
namespace {

constexpr size_t kSmallestTable = 256;

}  // namespace

int64_t SuffixTree::Extend(const SequenceText& text, int64_t budget) {
  operations_ = 0;
  if (nodes_.empty() && text.size() > 0 && budget > 0) {
    nodes_.emplace_back();
    Grow(text, std::max(kSmallestTable, 2 * static_cast<size_t>(text.size())));
  }
  while (size_ < text.size() && operations_ < budget) ExtendOnce(text);
  return operations_;
}

// Extends one suffix by the token at size_, or moves down one edge.
void SuffixTree::ExtendOnce(const SequenceText& text) {
  ++operations_;
  if (!std::exchange(within_token_, true)) ++pending_;
  if (active_length_ == 0) active_begin_ = size_;
  Edge* const edge = Find(text, active_node_, text[active_begin_]);
  if (edge != nullptr && Descend(edge->child)) return;
  if (edge != nullptr) {
    const int below = NodeOf(active_node_).depth + active_length_;
    if (text[LatestOf(edge->child) + below] == text[size_]) {
      // This suffix occurred before with the token, so all shorter ones did too.
      LinkTo(active_node_);
      ++active_length_;
      Descend(edge->child);
      ++size_;
      within_token_ = false;
      return;
    }
  }
  const int32_t parent = edge == nullptr ? active_node_ : Split(text, *edge);
  LinkTo(parent);
  unlinked_ = edge == nullptr ? kRoot : parent;
  AddLeaf(text, parent, size_ - pending_ + 1);
  --pending_;
  if (active_node_ != kRoot) {
    active_node_ = NodeOf(active_node_).link;
  } else if (active_length_ > 0) {
    --active_length_;
    active_begin_ = size_ - pending_ + 1;
  }
  if (pending_ == 0) {
    ++size_;
    within_token_ = false;
  }
}

// Moves the active point below the edge to `child` if it reaches the edge's end.
bool SuffixTree::Descend(int32_t child) {
  if (IsLeaf(child)) return false;
  const int length = NodeOf(child).depth - NodeOf(active_node_).depth;
  if (active_length_ < length) return false;
  active_node_ = child;
  active_length_ -= length;
  active_begin_ += length;
  return true;
}

void SuffixTree::LinkTo(int32_t node) {
  if (unlinked_ != kRoot) NodeOf(std::exchange(unlinked_, kRoot)).link = node;
}

// Adds a node at the active point, on `edge`. Returns it.
int32_t SuffixTree::Split(const SequenceText& text, Edge& edge) {
  const auto middle = static_cast<int32_t>(nodes_.size());
  const int32_t child = std::exchange(edge.child, middle);
  nodes_.push_back({.depth = NodeOf(active_node_).depth + active_length_,
                    .parent = active_node_,
                    .latest = LatestOf(child),
                    .count = CountOf(child)});
  if (!IsLeaf(child)) NodeOf(child).parent = middle;
  Insert(text, {middle, child});
  return middle;
}

void SuffixTree::AddLeaf(const SequenceText& text, int32_t parent, int32_t begin) {
  Insert(text, {parent, ~begin});
  int counted = 0;
  for (; parent != kRoot && counted < kCountedMax; ++counted) {
    Node& node = NodeOf(parent);
    node.latest = begin;
    ++node.count;
    parent = node.parent;
  }
  operations_ += counted;
}

SuffixTree::Match SuffixTree::LongestMatch(const SequenceText& text, int ahead) {
  if (pending_ == 0) return {};
  int32_t below = active_node_;
  if (active_length_ > 0) below = Find(text, active_node_, text[active_begin_])->child;
  return Describe(text, below, pending_, ahead);
}

// The match of `length` tokens whose path from the root ends at `below` or on the edge to it.
SuffixTree::Match SuffixTree::Describe(const SequenceText& text, int32_t below, int length,
                                       int ahead) {
  const int begin = LatestOf(below);
  Match match{.length = length, .next = begin + length};
  match.counts.reserve(static_cast<size_t>(ahead) + 1);
  match.counts.push_back(CountOf(below));
  for (int i = 1; i <= ahead; ++i) {
    while (!IsLeaf(below) && NodeOf(below).depth < length + i)
      below = Find(text, below, text[begin + NodeOf(below).depth])->child;
    match.counts.push_back(std::min(match.counts.back(), CountOf(below)));
  }
  return match;
}

// Where the path of `tokens` from the root ends, as Describe takes it; nullopt: there is no path.
std::optional<int32_t> SuffixTree::Locate(const SequenceText& text,
                                          std::span<const int32_t> tokens) {
  const int length = static_cast<int>(tokens.size());
  int32_t at = kRoot;
  for (int matched = 0; matched < length;) {
    const Edge* const edge = Find(text, at, tokens[static_cast<size_t>(matched)]);
    if (edge == nullptr) return std::nullopt;
    at = edge->child;
    const int begin = LatestOf(at);
    const int end = IsLeaf(at) ? size_ - begin : NodeOf(at).depth;
    for (; matched < std::min(end, length); ++matched) {
      if (text[begin + matched] != tokens[static_cast<size_t>(matched)]) return std::nullopt;
    }
    if (matched < length && IsLeaf(at)) return std::nullopt;
  }
  return at;
}

size_t SuffixTree::PlaceOf(int32_t parent, int32_t token) const {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32 |
                       static_cast<uint32_t>(token);
  const uint64_t hash = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
  return (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u >> (64 - std::countr_zero(edges_.size()));
}

// The edge from `parent` that begins with the token; nullptr: there is none.
SuffixTree::Edge* SuffixTree::Find(const SequenceText& text, int32_t parent, int32_t token) {
  const int depth = NodeOf(parent).depth;
  for (size_t place = PlaceOf(parent, token);; place = (place + 1) & (edges_.size() - 1)) {
    Edge& edge = edges_[place];
    ++operations_;
    if (edge.child == kRoot) return nullptr;
    if (edge.parent == parent && text[LatestOf(edge.child) + depth] == token) return &edge;
  }
}

// REQUIRES: no edge from the same parent begins with the same token.
void SuffixTree::Insert(const SequenceText& text, Edge edge) {
  if (4 * (num_edges_ + 1) > 3 * edges_.size()) Grow(text, 2 * edges_.size());
  ++num_edges_;
  const int32_t token = text[LatestOf(edge.child) + NodeOf(edge.parent).depth];
  size_t place = PlaceOf(edge.parent, token);
  for (; edges_[place].child != kRoot; place = (place + 1) & (edges_.size() - 1)) ++operations_;
  edges_[place] = edge;
}

void SuffixTree::Grow(const SequenceText& text, size_t places) {
  const std::vector<Edge> edges = std::exchange(edges_, std::vector<Edge>(std::bit_ceil(places)));
  num_edges_ = 0;
  for (const Edge& edge : edges) {
    if (edge.child != kRoot) Insert(text, edge);
  }
  operations_ += static_cast<int64_t>(edges.size());
}

}  // namespace diffserve
