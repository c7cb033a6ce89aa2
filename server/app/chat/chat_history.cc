// SPDX-License-Identifier: Apache-2.0
#include "server/app/chat/chat_history.h"

#include <iterator>

namespace diffserve {

void ChatHistory::Add(std::string question, std::string answer) {
  turns_.push_back({.role = "user", .content = std::move(question)});
  turns_.push_back({.role = "assistant", .content = std::move(answer)});
}

Conversation ChatHistory::With(std::string question) const {
  Conversation conversation;
  std::vector<Message>& messages = conversation.messages;
  if (!system_.empty()) messages.push_back({.role = "system", .content = system_});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  messages.push_back({.role = "user", .content = std::move(question)});
  return conversation;
}

}  // namespace diffserve
