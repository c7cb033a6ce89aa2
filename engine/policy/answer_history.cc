// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/answer_history.h"

#include <algorithm>
#include <utility>

namespace diffserve {
namespace {

constexpr size_t kPromptTokens = 16;  // before an answer; so its beginning can be guessed
constexpr int64_t kPartMin = 64;      // tokens; a smaller part is not worth a search

AnswerHistory::Tokens LastOf(AnswerHistory::Tokens tokens, size_t count) {
  return tokens.last(std::min(tokens.size(), count));
}

}  // namespace

int64_t AnswerHistory::Owner::bytes() const {
  size_t bytes = sizeof(Owner);
  for (const Part* part : {&newer, &older})
    bytes += part->tokens.capacity() * sizeof(int32_t) + part->tree.bytes();
  return static_cast<int64_t>(bytes);
}

void AnswerHistory::Add(const std::string& name, Tokens prompt, Tokens answer) {
  if (part_max() < kPartMin || answer.empty()) return;
  const auto [it, is_new] = owners_.try_emplace(name);
  Owner& owner = it->second;
  if (is_new) {
    owner.use = uses_.insert(uses_.begin(), &it->first);
  } else {
    num_tokens_ -= owner.num_tokens();
    bytes_ -= owner.bytes();
  }
  Use(owner);
  Keep(owner, LastOf(prompt, kPromptTokens), answer);
  num_tokens_ += owner.num_tokens();
  bytes_ += owner.bytes();
  if (!std::exchange(owner.is_unread, true)) unread_.push_back(name);
  while (num_tokens_ > tokens_max_) Drop(std::string(*uses_.back()));
}

void AnswerHistory::Keep(Owner& owner, Tokens before, Tokens answer) {
  const auto max = static_cast<size_t>(part_max());
  answer = answer.first(std::min(answer.size(), max - before.size() - 2));
  if (owner.newer.tokens.size() + before.size() + answer.size() + 2 > max)
    owner.older = std::exchange(owner.newer, {});
  std::vector<int32_t>& tokens = owner.newer.tokens;
  tokens.push_back(--owner.last_break);
  tokens.insert(tokens.end(), before.begin(), before.end());
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  tokens.push_back(--owner.last_break);
}

void AnswerHistory::Drop(const std::string& name) {
  const auto it = owners_.find(name);
  num_tokens_ -= it->second.num_tokens();
  bytes_ -= it->second.bytes();
  if (it->second.is_unread) unread_.remove(name);
  uses_.erase(it->second.use);
  owners_.erase(it);
}

int64_t AnswerHistory::Read(int64_t budget) {
  int64_t used = 0;
  while (!unread_.empty() && used < budget) {
    Owner& owner = owners_.at(unread_.front());
    bytes_ -= owner.bytes();
    Part& part = owner.newer;
    used += part.tree.Extend({.prompt = part.tokens}, budget - used);
    bytes_ += owner.bytes();
    owner.is_unread = part.tree.size() < std::ssize(part.tokens);
    if (!owner.is_unread) unread_.pop_front();
  }
  return used;
}

// Looks for an end of `end` that is as long as possible. Each occurrence of one is an occurrence of
// the shorter ones, so the length is found by halving.
bool AnswerHistory::Search(Part& part, Tokens end, int length_min, int ahead, Found& found) {
  const SequenceText text = {.prompt = part.tokens};
  const auto occurs = [&](int length) {
    return part.tree.Contains(text, end.last(static_cast<size_t>(length)));
  };
  const int length_max = static_cast<int>(end.size());
  if (length_min > length_max || !occurs(length_min)) return false;
  int known = length_min, unknown = length_max + 1;
  while (unknown - known > 1) {
    const int middle = (known + unknown) / 2;
    (occurs(middle) ? known : unknown) = middle;
  }
  found.text = text;
  found.match = part.tree.MatchOf(text, end.last(static_cast<size_t>(known)), ahead);
  return true;
}

AnswerHistory::Found AnswerHistory::Find(const std::string& name, const SequenceText& sequence,
                                         int length_min, int ahead) {
  Found found;
  const auto it = owners_.find(name);
  if (it == owners_.end()) return found;
  Use(it->second);
  std::vector<int32_t> end;
  for (int i = std::max(0, sequence.size() - kMatchMax); i < sequence.size(); ++i)
    end.push_back(sequence[i]);
  if (Search(it->second.newer, end, length_min, ahead, found)) length_min = found.match.length + 1;
  Search(it->second.older, end, length_min, ahead, found);
  return found;
}

}  // namespace diffserve
