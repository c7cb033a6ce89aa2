// SPDX-License-Identifier: Apache-2.0
#include "server/api/anthropic/input.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxBlocks = 4096;  // of one message

std::string ReadText(JsonFields& block, const std::string& path) {
  std::string text;
  if (!block.Has("text")) block.Fail(Missing(path + ".text"));
  block.String("text", kMaxTextBytes, &text);
  return text;
}

// Refuses requests for citations, which this server does not write.
void RefuseCitations(JsonFields& block, const std::string& path) {
  for (JsonFields& citations : block.Object("citations")) {
    bool enabled = false;
    citations.Bool("enabled", &enabled);
    if (enabled) citations.Fail(Unsupported(path + ".citations.enabled"));
    block.Fail(citations.status());
  }
}

void AddLine(const std::string& line, std::string* text) {
  if (!line.empty()) *text += (text->empty() ? "" : "\n") + line;
}

std::vector<std::string> ReadBlockTexts(JsonFields& fields, const char* name,
                                        const std::string& path);

// The readable text of a document or search result: the members that name it, and its content.
std::string ReadDocument(JsonFields& block, const std::string& type, const std::string& path) {
  std::string text;
  RefuseCitations(block, path);
  for (const char* name : {"source", "title", "context"}) {
    std::string line;
    if (block.IsString(name)) block.String(name, kMaxTextBytes, &line);
    AddLine(line, &text);
  }
  if (type == "search_result") {
    for (const std::string& part : ReadBlockTexts(block, "content", path + ".content"))
      AddLine(part, &text);
    return text;
  }
  for (JsonFields& source : block.Object("source")) {
    std::string data;
    const std::string kind = ReadMessagesName(source, "type", path + ".source");
    if (kind == "text") {
      source.String("data", kMaxTextBytes, &data);
      AddLine(data, &text);
    } else if (kind == "content") {
      for (const std::string& part : ReadBlockTexts(source, "content", path + ".source.content"))
        AddLine(part, &text);
    } else if (source.status().ok()) {
      source.Fail(Unsupported(path + ".source.type",
                              ": '" + kind.substr(0, 64) + "', only text and content are"));
    }
    block.Fail(source.status());
  }
  return text;
}

bool IsDocument(std::string_view type) { return type == "document" || type == "search_result"; }

// A string, or blocks of text.
std::vector<std::string> ReadBlockTexts(JsonFields& fields, const char* name,
                                        const std::string& path) {
  std::vector<std::string> texts;
  if (fields.IsString(name)) {
    fields.String(name, kMaxTextBytes, &texts.emplace_back());
    return texts;
  }
  std::vector<JsonFields> blocks = fields.Objects(name, kMaxBlocks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    const std::string type = ReadMessagesName(blocks[i], "type", at);
    if (type == "text")
      texts.push_back(ReadText(blocks[i], at));
    else if (IsDocument(type))
      texts.push_back(ReadDocument(blocks[i], type, at));
    else if (type == "tool_reference")  // a tool that a search has found
      texts.push_back(ReadMessagesName(blocks[i], "tool_name", at));
    else
      blocks[i].Fail(Unsupported(at + ".type", ": '" + type.substr(0, 64) + "', only text is"));
    fields.Fail(blocks[i].status());
  }
  return texts;
}

// Drops empty texts and Claude Code's first line, which changes with each request and would keep
// all later text out of the prefix cache.
std::vector<std::string> ReadSystem(JsonFields& fields, const char* name, const std::string& path) {
  std::vector<std::string> texts = ReadBlockTexts(fields, name, path);
  for (std::string& text : texts) {
    if (text.starts_with("x-anthropic-billing-header:"))
      text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  }
  std::erase(texts, std::string());
  return texts;
}

struct Blocks {
  std::string role;
  std::vector<std::string> texts;  // since the last block of another kind
  bool any = false;                // part of the message has been written
};

void EndTexts(Blocks& blocks, TurnList* messages) {
  if (blocks.texts.empty()) return;
  messages->Say(blocks.role, std::exchange(blocks.texts, {}));
  blocks.any = true;
}

// `input` is an object, or the text of a call that was cut off, as SDKs keep it.
void ReadToolUse(JsonFields& block, const std::string& path, TurnList* messages) {
  const std::string id = ReadMessagesName(block, "id", path),
                    name = ReadMessagesName(block, "name", path);
  std::string input;
  if (block.IsString("input"))
    block.String("input", kMaxTextBytes, &input);
  else if (!block.Object("input").empty())
    input = block.JsonText("input");
  if (block.status().ok()) messages->Call(id, name, input);
}

void ReadToolResult(JsonFields& block, const std::string& path, TurnList* messages) {
  const std::string id = ReadMessagesName(block, "tool_use_id", path);
  std::string text;
  for (const std::string& part : ReadBlockTexts(block, "content", path + ".content"))
    text += (text.empty() ? "" : "\n") + part;
  bool is_error = false;  // the text shows that
  block.Bool("is_error", &is_error);
  messages->Answer(id, text);
}

// Earlier thinking, and the results of the vendor's own tools, are not shown to the model again.
bool IsLeftOut(std::string_view type) {
  return type == "thinking" || type == "redacted_thinking" || type == "server_tool_use" ||
         type == "mcp_tool_use" || type.ends_with("_tool_result");
}

void ReadBlock(JsonFields& block, const std::string& path, Blocks& blocks, TurnList* messages) {
  const std::string type = ReadMessagesName(block, "type", path);
  const bool by_assistant = blocks.role == "assistant";
  if (type == "text") {
    blocks.texts.push_back(ReadText(block, path));
  } else if (IsDocument(type) && !by_assistant) {
    blocks.texts.push_back(ReadDocument(block, type, path));
  } else if (type == "tool_use" && by_assistant) {
    EndTexts(blocks, messages);
    ReadToolUse(block, path, messages);
    blocks.any = true;
  } else if (type == "tool_result" && !by_assistant) {
    EndTexts(blocks, messages);
    ReadToolResult(block, path, messages);
    blocks.any = true;
  } else if (block.status().ok() && !(by_assistant && IsLeftOut(type))) {
    block.Fail(Unsupported(path + ".type",
                           ": '" + type.substr(0, 64) + "' in a message of " + blocks.role));
  }
}

// The assistant's text at the end of a prompt, which the answer continues.
void CheckPrefill(JsonFields& message, const Blocks& said, const std::string& path) {
  const bool space = !said.texts.empty() && !said.texts.back().empty() &&
                     std::string_view(" \t\r\n").find(said.texts.back().back()) !=
                         std::string_view::npos;
  if (space) {
    message.Fail(NotAllowed(path + ".content ends with whitespace, and so does the prompt",
                            "text whose end can be continued", path + ".content"));
  } else if (said.texts.empty() && said.any) {
    message.Fail(InvalidArgument(path + ".content ends with a call, and no result follows it",
                                 path + ".content"));
  }
}

class MessagesReader {
 public:
  explicit MessagesReader(bool answers) : answers_(answers) {}
  Conversation Read(JsonFields& fields, const TemplateRoles& roles);

 private:
  void ReadMessage(JsonFields& message, const std::string& path, bool last);
  // Content: blocks or a text. Absent or null is empty, which only the assistant may send.
  void ReadContent(JsonFields& message, const std::string& path, Blocks& said);

  void SaySystem(JsonFields& fields, const char* name, const std::string& path) {
    const std::vector<std::string> texts = ReadSystem(fields, name, path);
    if (!texts.empty()) messages_.Say("system", texts);
  }

  const bool answers_;
  TurnList messages_;
  bool continues_ = false;  // the answer continues the last message
};

void MessagesReader::ReadContent(JsonFields& message, const std::string& path, Blocks& said) {
  if (message.IsString("content")) {
    message.String("content", kMaxTextBytes, &said.texts.emplace_back());
    return;
  }
  if (!message.Has("content") && said.role != "assistant") message.Fail(Missing(path + ".content"));
  std::vector<JsonFields> blocks = message.Objects("content", kMaxBlocks);
  for (size_t i = 0; i < blocks.size() && message.status().ok(); ++i) {
    ReadBlock(blocks[i], path + ".content[" + std::to_string(i) + "]", said, &messages_);
    message.Fail(blocks[i].status());
  }
}

void MessagesReader::ReadMessage(JsonFields& message, const std::string& path, bool last) {
  Blocks said;
  message.String("role", kMaxNameBytes, &said.role);
  const bool by_assistant = said.role == "assistant";
  if (message.status().ok() && said.role == "system") {
    SaySystem(message, "content", path + ".content");
    return;
  }
  if (message.status().ok() && said.role != "user" && !by_assistant) {
    message.Fail(NotOneOf(path + ".role", said.role, "user, assistant, system"));
  }
  ReadContent(message, path, said);
  if (by_assistant) std::erase(said.texts, std::string());
  if (by_assistant && last) {
    if (answers_ && message.status().ok()) CheckPrefill(message, said, path);
    continues_ = !said.texts.empty();
  }
  const bool nothing = said.texts.empty() && !said.any;
  if (!nothing)
    EndTexts(said, &messages_);
  else if (!(by_assistant && last))
    messages_.Say(said.role, {});
}

Conversation MessagesReader::Read(JsonFields& fields, const TemplateRoles& roles) {
  SaySystem(fields, "system", "system");
  if (!fields.Has("messages")) fields.Fail(Missing("messages"));
  std::vector<JsonFields> messages = fields.Objects("messages", kMaxMessages);
  if (messages.empty()) fields.Fail(IsEmpty("messages", "at least 1 message"));
  for (size_t i = 0; i < messages.size() && fields.status().ok(); ++i) {
    ReadMessage(messages[i], "messages[" + std::to_string(i) + "]", i + 1 == messages.size());
    fields.Fail(messages[i].status());
  }
  Conversation conversation;
  conversation.messages = messages_.Take();
  if (continues_) ContinueFinalMessage(&conversation);
  FitRoles(roles, &conversation.messages);
  return conversation;
}

}  // namespace

std::string ReadMessagesName(JsonFields& fields, const char* name, const std::string& path) {
  std::string text;
  fields.String(name, kMaxNameBytes, &text);
  if (fields.status().ok() && text.empty()) {
    const std::string member = path + "." + name;
    fields.Fail(fields.Has(name) ? IsEmpty(member, "a name") : Missing(member));
  }
  return text;
}

Conversation ReadMessagesInput(JsonFields& fields, bool answers, const TemplateRoles& roles) {
  return MessagesReader(answers).Read(fields, roles);
}

}  // namespace diffserve
