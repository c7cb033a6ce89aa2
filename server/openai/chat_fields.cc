#include "server/openai/chat_fields.h"

#include "server/openai/tool_fields.h"
#include "server/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxContentParts = 1024;
constexpr size_t kMaxTemplateKwargs = 64;

// The text of a message: a string, or text parts joined by newlines. Beside calls of tools it may
// be missing.
std::string ReadContent(JsonFields& message, const std::string& path) {
  std::string content;
  if (!message.Has("content") && !message.IsOff("tool_calls")) return content;
  if (message.IsString("content")) {
    message.String("content", kMaxTextBytes, &content);
    return content;
  }
  if (!message.Has("content")) {
    message.Fail(InvalidArgument(path + ".content is missing", path + ".content"));
    return content;
  }
  bool first = true;
  for (JsonFields& part : message.Objects("content", kMaxContentParts)) {
    std::string type, text;
    part.String("type", kMaxNameBytes, &type);
    if (part.status().ok() && type != "text") {
      part.Fail(InvalidArgument(path + ".content has a part of a type other than text",
                                path + ".content"));
    } else if (!part.Has("text")) {
      part.Fail(InvalidArgument(path + ".content has a part without text", path + ".content"));
    }
    part.String("text", kMaxTextBytes, &text);
    message.Fail(part.status());
    if (!first) content += '\n';
    first = false;
    content += text;
  }
  return content;
}

// The messages in the form that templates expect: [{"role", "content", "name"?, "tool_calls"?,
// "reasoning_content"?, "tool_call_id"?}].
std::string ReadMessages(JsonFields& fields) {
  if (!fields.Has("messages")) fields.Fail(InvalidArgument("messages is missing", "messages"));
  std::vector<JsonFields> messages = fields.Objects("messages", kMaxMessages);
  if (messages.empty()) fields.Fail(InvalidArgument("messages is empty", "messages"));
  std::string json = "[";
  for (size_t i = 0; i < messages.size(); ++i) {
    JsonFields& message = messages[i];
    const std::string path = "messages[" + std::to_string(i) + "]";
    std::string role, name;
    message.String("role", kMaxNameBytes, &role);
    message.Fail(CheckRole(role, path, ToolMessages::kAllowed));
    for (const char* member : {"function_call", "audio"}) {
      if (!message.IsOff(member)) message.Fail(Unsupported(path + "." + member));
    }
    if (role != "assistant" && !message.IsOff("tool_calls")) {
      message.Fail(InvalidArgument(path + ".tool_calls is allowed for the role assistant only",
                                   path + ".tool_calls"));
    }
    message.String("name", kMaxNameBytes, &name);
    const std::string content = ReadContent(message, path);
    fields.Fail(message.status());
    if (!fields.status().ok()) break;
    if (i > 0) json += ',';
    json += "{\"role\":" + JsonQuoted(role) + ",\"content\":" + JsonQuoted(content);
    if (!name.empty()) json += ",\"name\":" + JsonQuoted(name);
    if (role == "assistant") json += ReadAssistantMembers(message, path);
    if (role == "tool") json += ReadToolMembers(message, path);
    fields.Fail(message.status());
    json += '}';
  }
  return json + "]";
}

}  // namespace

Status Unsupported(std::string_view name, std::string_view why) {
  return InvalidArgument(std::string(name) + " is not supported by this server" + std::string(why),
                         std::string(name));
}

ChatPrompt ReadChatPrompt(JsonFields& fields, bool add_generation_prompt) {
  ChatPrompt chat;
  chat.add_generation_prompt = add_generation_prompt;
  chat.messages_json = ReadMessages(fields);
  fields.Bool("add_generation_prompt", &chat.add_generation_prompt);
  constexpr std::string_view kReserved[] = {"messages",      "add_generation_prompt",
                                            "chat_template", "tokenize",
                                            "tools",         "documents",
                                            "bos_token",     "eos_token",
                                            "pad_token",     "unk_token"};
  fields.Scalars("chat_template_kwargs", kMaxTemplateKwargs, kReserved, &chat.template_kwargs_json);
  return chat;
}

}  // namespace diffserve
