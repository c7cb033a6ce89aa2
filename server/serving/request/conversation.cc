// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/conversation.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "engine/text/chat_template.h"
#include "server/json/json_writer.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

// An assistant that only calls has an empty list, as it has an empty text. A template that reads
// the first part needs one.
void WriteParts(const Message& message, bool one_part, JsonWriter& json) {
  const auto add = [&](std::string_view text) {
    json.Begin('{').Add("type", "text").Add("text", text).End('}');
  };
  json.Begin('[');
  size_t begin = 0;
  for (const size_t end : one_part ? std::span<const size_t>() : std::span(message.breaks)) {
    add(std::string_view(message.content).substr(begin, end - begin));
    begin = end + 1;
  }
  if (one_part || !message.content.empty() || message.calls.empty())
    add(std::string_view(message.content).substr(begin));
  json.End(']');
}

void WriteMessage(const Message& message, ContentForm form, JsonWriter& json) {
  json.Begin('{').Add("role", message.role).Key("content");
  if (form == ContentForm::kText || (form == ContentForm::kTextOrParts && message.breaks.empty()))
    json.Value(message.content);
  else
    WriteParts(message, form == ContentForm::kOnePart, json);
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

void Message::SetParts(const std::vector<std::string>& texts) {
  content.clear();
  breaks.clear();
  for (const std::string& text : texts) {
    if (&text != &texts.front()) {
      breaks.push_back(content.size());
      content += '\n';
    }
    content += text;
  }
}

size_t Message::HeldBytes() const {
  size_t bytes = sizeof(*this) + role.capacity() + content.capacity() + name.capacity() +
                 reasoning.capacity() + tool_call_id.capacity() +
                 breaks.capacity() * sizeof(breaks.front());
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

Status ContinueFinalMessageIfNotOpened(Conversation* conversation) {
  if (conversation->add_generation_prompt) {
    return InvalidArgument(
        "continue_final_message is true and add_generation_prompt is not false; an answer either "
        "continues the last message or begins a new one",
        "continue_final_message");
  }
  ContinueFinalMessage(conversation);
  return {};
}

std::string_view ContinuedText(const Conversation& conversation) {
  if (!conversation.continues_final_message || conversation.messages.empty()) return {};
  std::string_view text = conversation.messages.back().content;
  if (text.ends_with(kContinuationMark)) text.remove_suffix(kContinuationMark.size());
  return text;
}

void FitRoles(const TemplateRoles& roles, std::vector<Message>* messages) {
  for (Message& message : *messages) {
    if (!roles.developer && message.role == "developer") message.role = "system";
  }
  if (roles.later_system || messages->empty()) return;
  const auto is_system = [](const Message& message) { return message.role == "system"; };
  if (std::none_of(messages->begin() + 1, messages->end(), is_system)) return;
  std::vector<std::string> texts;
  for (Message& message : *messages) {
    if (is_system(message)) texts.push_back(std::move(message.content));
  }
  std::erase_if(*messages, is_system);
  Message& prompt = *messages->insert(messages->begin(), {.role = "system", .content = {}});
  prompt.SetParts(texts);
  prompt.breaks.clear();  // one text: its newlines keep the messages apart
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
  message.SetParts(texts);
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

TemplateJson TemplateJsonOf(const Conversation& conversation, const ContentForms& forms) {
  TemplateJson out;
  const RoleForms& of_role = conversation.tools.empty() ? forms.without_tools : forms.with_tools;
  JsonWriter messages(&out.messages);
  messages.Begin('[');
  for (const Message& message : conversation.messages) {
    WriteMessage(message, of_role.Of(message.role), messages);
  }
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
