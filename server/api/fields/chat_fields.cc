// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/chat_fields.h"

#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/fields/tool_fields.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxContentParts = 1024;
constexpr size_t kMaxTemplateKwargs = 64;
constexpr size_t kMaxTemplateKwargsBytes = 1 << 20;  // as of tools, which some templates take here

// The member that holds a part's text; nullptr: the part is reasoning, which is a separate member
// of a message.
const char* TextMember(std::string_view type, bool by_assistant) {
  if (by_assistant && type == "refusal") return "refusal";
  return by_assistant && (type == "thinking" || type == "reasoning") ? nullptr : "text";
}

std::vector<std::string> ReadParts(JsonFields& message, const std::string& path,
                                   bool by_assistant) {
  std::vector<std::string> texts;
  for (JsonFields& part : message.Objects("content", kMaxContentParts)) {
    std::string type;
    part.String("type", kMaxNameBytes, &type);
    const char* const member = TextMember(type, by_assistant);
    if (member == nullptr) continue;
    const bool is_text = type == "text" || type == "input_text" || type == "output_text";
    if (part.status().ok() && !is_text && type != member) {
      part.Fail(NotAllowed(path + ".content has a part of the type " + QuotedText(type), "text",
                           path + ".content"));
    } else if (!part.Has(member)) {
      part.Fail(NotAllowed(path + ".content has a part without " + member, "parts with it",
                           path + ".content"));
    }
    part.String(member, kMaxTextBytes, &texts.emplace_back());
    message.Fail(part.status());
  }
  return texts;
}

// The text of a message. It may be absent in an assistant's message with calls, reasoning or a
// refusal, in an empty answer, and in a tool's message.
void ReadContent(JsonFields& message, const std::string& path, Message* read) {
  const bool by_assistant = read->role == "assistant";
  if (message.IsString("content"))
    message.String("content", kMaxTextBytes, &read->content);
  else if (message.Has("content"))
    read->SetParts(ReadParts(message, path, by_assistant));
  else if (!by_assistant && read->role != "tool")
    message.Fail(Missing(path + ".content"));
  if (by_assistant && read->content.empty())
    message.String("refusal", kMaxTextBytes, &read->content);
}

Message ReadMessage(JsonFields& message, const std::string& path) {
  Message read;
  message.String("role", kMaxNameBytes, &read.role);
  message.Fail(CheckRole(read.role, path, ToolMessages::kAllowed));
  for (const char* member : {"function_call", "audio"}) {
    if (!message.IsOff(member)) message.Fail(Unsupported(path + "." + member));
  }
  if (!message.IsOff("prefix"))
    message.Fail(Unsupported(path + ".prefix", ": use continue_final_message"));
  if (read.role != "assistant" && !message.IsOff("tool_calls")) {
    message.Fail(OnlyWith(path + ".tool_calls", "the role assistant"));
  }
  message.String("name", kMaxNameBytes, &read.name);
  ReadContent(message, path, &read);
  if (!message.status().ok()) return read;
  if (read.role == "assistant") ReadAssistantMembers(message, path, &read);
  if (read.role == "tool") ReadToolMembers(message, path, &read);
  return read;
}

std::vector<Message> ReadMessages(JsonFields& fields) {
  if (!fields.Has("messages")) fields.Fail(Missing("messages"));
  std::vector<JsonFields> entries = fields.Objects("messages", kMaxMessages);
  if (entries.empty()) fields.Fail(IsEmpty("messages", "at least 1 message"));
  std::vector<Message> messages;
  for (size_t i = 0; i < entries.size() && fields.status().ok(); ++i) {
    messages.push_back(ReadMessage(entries[i], "messages[" + std::to_string(i) + "]"));
    fields.Fail(entries[i].status());
  }
  return messages;
}

}  // namespace

Status Unsupported(std::string_view name, std::string_view why) {
  return InvalidArgument(std::string(name) + " is not supported by this server" + std::string(why),
                         std::string(name));
}

int IntAtLeast(JsonFields& fields, std::string_view name, int min, int absent) {
  if (!fields.Has(name)) return absent;
  int value = absent;
  fields.Count(name, &value);
  if (fields.status().ok() && value < min) {
    fields.Fail(BelowMin(name, value, min));
  }
  return value;
}

Conversation ReadConversation(JsonFields& fields, bool add_generation_prompt) {
  Conversation chat;
  chat.add_generation_prompt = add_generation_prompt;
  fields.Bool("add_generation_prompt", &chat.add_generation_prompt);
  bool continues = false;
  fields.Bool("continue_final_message", &continues);
  chat.messages = ReadMessages(fields);
  if (continues) fields.Fail(ContinueFinalMessageIfNotOpened(&chat));
  constexpr std::string_view kReserved[] = {"messages",      "add_generation_prompt",
                                            "chat_template", "tokenize",
                                            "tools",         "documents",
                                            "bos_token",     "eos_token",
                                            "pad_token",     "unk_token"};
  fields.Variables("chat_template_kwargs", kMaxTemplateKwargs, kMaxTemplateKwargsBytes, kReserved,
                   &chat.template_kwargs);
  return chat;
}

}  // namespace diffserve
