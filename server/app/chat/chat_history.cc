// SPDX-License-Identifier: Apache-2.0
#include "server/app/chat/chat_history.h"

#include "server/api/json/json.h"

namespace diffserve {
namespace {

std::string Message(const char* role, std::string_view content) {
  return std::string("{\"role\":\"") + role + "\",\"content\":" + JsonQuoted(content) + "}";
}

}  // namespace

void ChatHistory::Add(std::string_view question, std::string_view answer) {
  turns_ += Message("user", question) + ',' + Message("assistant", answer) + ',';
}

std::string ChatHistory::MessagesJson(std::string_view question) const {
  const std::string before = system_.empty() ? "" : Message("system", system_) + ',';
  return '[' + before + turns_ + Message("user", question) + ']';
}

}  // namespace diffserve
