// SPDX-License-Identifier: Apache-2.0
// ChatHistory: the messages of a conversation in the terminal so far.
// Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/serving/request/conversation.h"

namespace diffserve {

class ChatHistory {
 public:
  // `system`: the system message; empty: none.
  explicit ChatHistory(std::string system) : system_(std::move(system)) {}

  void SetSystem(std::string system) { system_ = std::move(system); }
  const std::string& system() const { return system_; }
  void Reset() { turns_.clear(); }
  // Adds an answered turn. Unanswered questions are not part of the conversation.
  void Add(std::string question, std::string answer);

  // The conversation with `question` as its last message.
  Conversation With(std::string question) const;

 private:
  std::string system_;
  std::vector<Message> turns_;
};

}  // namespace diffserve
