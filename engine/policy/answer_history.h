// SPDX-License-Identifier: Apache-2.0
// AnswerHistory: the past answers of each owner, as a source of guesses for its next ones. An owner
// is a client and its cache salt; no owner sees the answers of another. The answers of an owner are
// in two parts of equal size. When the newer part is full, the older one is dropped. Beyond the
// limit of all owners, the owner that was used least recently is dropped. Owned by the Scheduler;
// no clock, no device.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/policy/suffix_tree.h"

namespace diffserve {

class AnswerHistory {
 public:
  using Tokens = std::span<const int32_t>;
  // What followed the end of a text in a past answer. `text` is valid until the next call.
  struct Found {
    SequenceText text = {};
    SuffixTree::Match match = {};
  };
  // What a token can take at most, with its place in a tree.
  static constexpr int64_t kBytesPerToken = 8 + SuffixTree::kBytesPerTokenMax;

  explicit AnswerHistory(int64_t bytes_max) : tokens_max_(bytes_max / kBytesPerToken) {}

  // Keeps an answer, and the end of its prompt before it. REQUIRES: `owner` is not empty.
  void Add(const std::string& owner, Tokens prompt, Tokens answer);
  // Makes what was kept searchable, for at most `budget` operations. Returns how many were used.
  int64_t Read(int64_t budget);
  // The longest end of prompt and outputs that occurs in the owner's answers, if it has at least
  // `length_min` tokens, and counts of up to `ahead` tokens after it. match.length is 0 if there is
  // none.
  Found Find(const std::string& owner, const SequenceText& sequence, int length_min, int ahead);

  int64_t bytes() const { return bytes_; }
  int num_owners() const { return static_cast<int>(owners_.size()); }

 private:
  static constexpr int kMatchMax = 32;  // tokens; a longer match is as good
  // What an owner takes in addition to its tokens: names, entries, and trees that are nearly empty.
  static constexpr int64_t kOwnerTokens = 64;
  // Answers, each with a token before and after it that occurs once.
  struct Part {
    std::vector<int32_t> tokens = {};
    SuffixTree tree = {};
  };
  struct Owner {
    Part newer = {}, older = {};
    int32_t last_break = 0;  // negative; the token after the last answer
    std::list<const std::string*>::iterator use = {};
    bool is_unread = false;  // the newer part has tokens that are not in its tree

    int64_t num_tokens() const {
      return kOwnerTokens + std::ssize(newer.tokens) + std::ssize(older.tokens);
    }
    int64_t bytes() const;
  };
  void Keep(Owner& owner, Tokens before, Tokens answer);
  static bool Search(Part& part, Tokens end, int length_min, int ahead, Found& found);
  void Drop(const std::string& name);
  void Use(Owner& owner) { uses_.splice(uses_.begin(), uses_, owner.use); }
  int64_t part_max() const { return tokens_max_ / 4; }  // so an owner has at most half of all

  const int64_t tokens_max_;
  int64_t num_tokens_ = 0, bytes_ = 0;
  std::map<std::string, Owner> owners_;  // ordered: clients choose parts of the names
  std::list<const std::string*> uses_;   // keys of owners_, most recently used first
  std::list<std::string> unread_;        // names of those that are unread
};

}  // namespace diffserve
