// SPDX-License-Identifier: Apache-2.0
// ChatHistory: the messages of a conversation so far, as the chat routes and the chat template take
// them. Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

class ChatHistory {
 public:
  // `system`: the system message; empty: none.
  explicit ChatHistory(std::string system) : system_(std::move(system)) {}

  void SetSystem(std::string system) { system_ = std::move(system); }
  const std::string& system() const { return system_; }
  void Reset() { turns_.clear(); }
  // Adds an answered turn. Unanswered questions are not part of the conversation.
  void Add(std::string_view question, std::string_view answer);

  // The JSON array of the messages, with `question` as the last one.
  std::string MessagesJson(std::string_view question) const;

 private:
  std::string system_;
  std::string turns_;  // messages, each followed by a comma
};

}  // namespace diffserve
