// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/generic_tools.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "server/json/json_writer.h"

namespace diffserve {
namespace {

constexpr std::string_view kResultBegin = "<tool_response>\n", kResultEnd = "\n</tool_response>";

std::string CallText(const ToolCall& call) {
  std::string text = "<tool_call>\n";
  JsonWriter json(&text);
  json.Begin('{').Add("name", call.name).Key("arguments").Json(call.arguments).End('}');
  return text + "\n</tool_call>";
}

// What a model must know to call the tools. Small models have short contexts: each word counts.
std::string ToolsText(const std::vector<Tool>& tools) {
  std::string text = "You can call tools:\n<tools>\n";
  for (const Tool& tool : tools) text += ToolText(tool) + "\n";
  return text + "</tools>\nTo call one, write:\n" +
         CallText({.id = {}, .name = "NAME", .arguments = JsonObjectOf("PARAMETER", "VALUE")}) +
         "\nIts result follows in <tool_response>. Otherwise answer in words.";
}

void AddParagraph(std::string_view text, std::string* content) {
  if (!content->empty()) *content += "\n";
  *content += text;
}

// Joins the results that follow each other, and the user's text after them, to one message: many
// templates want users and assistants to take turns.
std::vector<Message> WithoutToolMessages(std::vector<Message> messages) {
  std::vector<Message> written;
  bool after_results = false;
  for (Message& message : messages) {
    const bool is_result = message.role == "tool";
    if (is_result)
      message.content = std::string(kResultBegin) + message.content + std::string(kResultEnd);
    if (is_result || (after_results && message.role == "user")) {
      if (!after_results) written.push_back({.role = "user", .content = {}});
      AddParagraph(message.content, &written.back().content);
      after_results = true;
      continue;
    }
    after_results = false;
    for (const ToolCall& call : std::exchange(message.calls, {}))
      AddParagraph(CallText(call), &message.content);
    written.push_back(std::move(message));
  }
  return written;
}

}  // namespace

void WriteToolsAsText(bool shows_system, Conversation* conversation) {
  std::vector<Message>& messages = conversation->messages;
  messages = WithoutToolMessages(std::move(messages));
  const std::vector<Tool> tools = std::exchange(conversation->tools, {});
  if (tools.empty()) return;
  const auto is_prompt = [](const Message& message) {
    return message.role == "system" || message.role == "developer";
  };
  if (!shows_system) {
    const auto user = std::ranges::find(messages, "user", &Message::role);
    if (user == messages.end()) return;
    const std::string before = ToolsText(tools) + "\n\n";
    user->content.insert(0, before);
    for (size_t& place : user->breaks) place += before.size();
  } else if (!messages.empty() && is_prompt(messages.front())) {
    messages.front().content += "\n\n" + ToolsText(tools);
  } else {
    messages.insert(messages.begin(), {.role = "system", .content = ToolsText(tools)});
  }
}

}  // namespace diffserve
