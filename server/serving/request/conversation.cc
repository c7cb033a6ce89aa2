// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/conversation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/text/chat_template.h"
#include "server/json/json_writer.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

void WriteMessage(const Message& message, JsonWriter& json) {
  json.Begin('{').Add("role", message.role).Add("content", message.content);
  if (!message.name.empty()) json.Add("name", message.name);
  if (!message.calls.empty()) {
    json.Key("tool_calls").Begin('[');
    for (const ToolCall& call : message.calls) {
      json.Begin('{');
      if (!call.id.empty()) json.Add("id", call.id);
      json.Add("type", "function").Key("function").Begin('{').Add("name", call.name);
      json.Key("arguments").Json(call.arguments).End('}').End('}');
    }
    json.End(']');
  }
  if (!message.reasoning.empty()) json.Add("reasoning_content", message.reasoning);
  if (!message.tool_call_id.empty()) json.Add("tool_call_id", message.tool_call_id);
  json.End('}');
}

}  // namespace

size_t Message::HeldBytes() const {
  size_t bytes = sizeof(*this) + role.capacity() + content.capacity() + name.capacity() +
                 reasoning.capacity() + tool_call_id.capacity();
  for (const ToolCall& call : calls)
    bytes += sizeof(call) + call.id.capacity() + call.name.capacity() + call.arguments.capacity();
  return bytes;
}

size_t Conversation::TextBytes() const {
  constexpr size_t kAround = 64;  // of a message, a call or a tool
  size_t bytes = template_kwargs.size();
  for (const Message& message : messages) {
    bytes += kAround + message.content.size() + message.reasoning.size();
    for (const ToolCall& call : message.calls)
      bytes += kAround + call.name.size() + call.arguments.size();
  }
  for (const Tool& tool : tools)
    bytes += kAround + tool.name.size() + tool.description.size() + tool.parameters_json.size();
  return bytes;
}

void SetReasoningEffort(std::string effort, bool thinking_is_set, Conversation* conversation) {
  if (effort == "none" && !thinking_is_set) conversation->enable_thinking = false;
  conversation->reasoning_effort = std::move(effort);
}

void ContinueFinalMessage(Conversation* conversation) {
  conversation->continues_final_message = true;
  conversation->add_generation_prompt = false;
  if (!conversation->messages.empty()) conversation->messages.back().content += kContinuationMark;
}

void FitRoles(const TemplateRoles& roles, std::vector<Message>* messages) {
  for (Message& message : *messages) {
    if (!roles.developer && message.role == "developer") message.role = "system";
  }
  if (roles.later_system || messages->empty()) return;
  std::string prompt;
  bool first = true, any = false;
  std::erase_if(*messages, [&](const Message& message) {
    const bool is_system = message.role == "system";
    if (is_system) prompt += (std::exchange(any, true) ? "\n" : "") + message.content;
    const bool stays = std::exchange(first, false);
    return is_system && !stays;
  });
  if (!any) return;
  if (messages->front().role == "system")
    messages->front().content = std::move(prompt);
  else
    messages->insert(messages->begin(), Message{.role = "system", .content = std::move(prompt)});
}

std::string CallArguments(const std::string& text) {
  if (IsJsonObject(text)) return text;
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const std::string_view bare = std::string_view(text).substr(
      begin, text.find_last_not_of(kSpace) + 1 - begin);
  std::string json;
  JsonWriter object(&json);
  object.Begin('{');
  if (!bare.empty() && bare != "null" && bare != "[]") object.Add("INVALID_JSON", text);
  object.End('}');
  return json;
}

std::string TextArguments(std::string_view text) {
  std::string json;
  JsonWriter(&json).Begin('{').Add("input", text).End('}');
  return json;
}

void TurnList::Say(std::string_view role, const std::vector<std::string>& texts) {
  Message& message = messages_.emplace_back(Message{.role = std::string(role), .content = {}});
  for (const std::string& text : texts)
    message.content += (&text == &texts.front() ? "" : "\n") + text;
  in_assistant_ = role == "assistant";
}

void TurnList::Call(std::string_view id, std::string_view name, const std::string& arguments) {
  if (!in_assistant_) Say("assistant", {});
  messages_.back().calls.push_back({std::string(id), std::string(name), CallArguments(arguments)});
}

void TurnList::Answer(std::string_view call_id, std::string_view text) {
  Message& message = messages_.emplace_back(Message{.role = "tool", .content = std::string(text)});
  message.tool_call_id = call_id;
  in_assistant_ = false;
}

void TurnList::Append(std::vector<Message> messages) {
  std::ranges::move(messages, std::back_inserter(messages_));
  in_assistant_ = false;
}

TemplateJson TemplateJsonOf(const Conversation& conversation) {
  TemplateJson out;
  JsonWriter messages(&out.messages);
  messages.Begin('[');
  for (const Message& message : conversation.messages) WriteMessage(message, messages);
  messages.End(']');
  out.tools = ToolsJson(conversation.tools);
  const std::string_view own = conversation.template_kwargs;
  JsonWriter kwargs(&out.kwargs);
  kwargs.Begin('{').Members(own.substr(1, own.size() - 2));
  if (!conversation.reasoning_effort.empty())
    kwargs.Add("reasoning_effort", conversation.reasoning_effort);
  if (conversation.enable_thinking) kwargs.Add("enable_thinking", *conversation.enable_thinking);
  kwargs.End('}');
  return out;
}

}  // namespace diffserve
