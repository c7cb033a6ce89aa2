#include "server/openai/messages_request.h"

#include <string>
#include <utility>
#include <vector>

#include "server/openai/chat_body.h"
#include "server/openai/chat_fields.h"
#include "server/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxBlocks = 4096;  // of one message

const std::vector<std::string_view> kKnown = {
    "model", "messages",    "system",   "max_tokens",    "stop_sequences", "stream",
    "tools", "tool_choice", "thinking", "output_config", "output_format"};
// What changes nothing here, whatever its value.
const std::vector<std::string_view> kHarmless = {"metadata", "service_tier", "cache_control",
                                                 "inference_geo", "betas"};
const std::vector<std::string_view> kUnsupported = {"container", "mcp_servers",
                                                    "context_management", "prompt", "speed"};

std::string ReadText(JsonFields& block, const std::string& path) {
  std::string text;
  if (!block.Has("text")) block.Fail(InvalidArgument(path + ".text is missing", path + ".text"));
  block.String("text", kMaxTextBytes, &text);
  return text;
}

std::string ReadName(JsonFields& fields, const char* name, const std::string& path) {
  std::string text;
  fields.String(name, kMaxNameBytes, &text);
  if (fields.status().ok() && text.empty()) {
    const std::string member = path + "." + name;
    fields.Fail(InvalidArgument(member + " is missing or empty", member));
  }
  return text;
}

// A string, or blocks of text alone.
std::vector<std::string> ReadTexts(JsonFields& fields, const char* name, const std::string& path) {
  std::vector<std::string> texts;
  if (fields.IsString(name)) {
    fields.String(name, kMaxTextBytes, &texts.emplace_back());
    return texts;
  }
  std::vector<JsonFields> blocks = fields.Objects(name, kMaxBlocks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    const std::string type = ReadName(blocks[i], "type", at);
    if (type == "text")
      texts.push_back(ReadText(blocks[i], at));
    else
      blocks[i].Fail(Unsupported(at + ".type", ": '" + type.substr(0, 64) + "', only text is"));
    fields.Fail(blocks[i].status());
  }
  return texts;
}

struct Blocks {
  std::string role;
  std::vector<std::string> texts;  // since the last block of another kind
  bool any = false;                // something of the message has been said
};

void EndTexts(Blocks& blocks, ChatMessages* messages) {
  if (blocks.texts.empty()) return;
  messages->Say(blocks.role, std::exchange(blocks.texts, {}));
  blocks.any = true;
}

void ReadToolUse(JsonFields& block, const std::string& path, ChatMessages* messages) {
  const std::string id = ReadName(block, "id", path), name = ReadName(block, "name", path);
  if (block.Object("input").empty() && block.status().ok())
    block.Fail(InvalidArgument(path + ".input is missing", path + ".input"));
  if (block.status().ok()) messages->Call(id, name, block.JsonText("input"));
}

void ReadToolResult(JsonFields& block, const std::string& path, ChatMessages* messages) {
  const std::string id = ReadName(block, "tool_use_id", path);
  std::string text;
  for (const std::string& part : ReadTexts(block, "content", path + ".content"))
    text += (text.empty() ? "" : "\n") + part;
  bool is_error = false;  // the text tells
  block.Bool("is_error", &is_error);
  messages->Answer(id, text);
}

void ReadBlock(JsonFields& block, const std::string& path, Blocks& blocks, ChatMessages* messages) {
  const std::string type = ReadName(block, "type", path);
  const bool by_assistant = blocks.role == "assistant";
  if (type == "text") {
    blocks.texts.push_back(ReadText(block, path));
  } else if (type == "tool_use" && by_assistant) {
    EndTexts(blocks, messages);
    ReadToolUse(block, path, messages);
    blocks.any = true;
  } else if (type == "tool_result" && !by_assistant) {
    EndTexts(blocks, messages);
    ReadToolResult(block, path, messages);
    blocks.any = true;
  } else if (by_assistant && (type == "thinking" || type == "redacted_thinking")) {
    // What a model thought in earlier turns is not shown to it again.
  } else if (block.status().ok()) {
    block.Fail(Unsupported(path + ".type",
                           ": '" + type.substr(0, 64) + "' in a message of " + blocks.role));
  }
}

// Returns the role of the last message.
std::string ReadMessages(JsonFields& fields, ChatMessages* out) {
  if (!fields.Has("messages")) fields.Fail(InvalidArgument("messages is missing", "messages"));
  std::vector<JsonFields> messages = fields.Objects("messages", kMaxMessages);
  if (messages.empty()) fields.Fail(InvalidArgument("messages is empty", "messages"));
  Blocks said;
  for (size_t i = 0; i < messages.size() && fields.status().ok(); ++i) {
    JsonFields& message = messages[i];
    const std::string path = "messages[" + std::to_string(i) + "]";
    said = {};
    message.String("role", kMaxNameBytes, &said.role);
    if (message.status().ok() && said.role != "user" && said.role != "assistant") {
      message.Fail(InvalidArgument(path + ".role must be user or assistant", path + ".role"));
    } else if (message.IsString("content")) {
      said.texts = ReadTexts(message, "content", path + ".content");
    } else if (!message.Has("content")) {
      message.Fail(InvalidArgument(path + ".content is missing", path + ".content"));
    }
    if (!message.IsString("content")) {
      std::vector<JsonFields> blocks = message.Objects("content", kMaxBlocks);
      for (size_t b = 0; b < blocks.size() && message.status().ok(); ++b) {
        ReadBlock(blocks[b], path + ".content[" + std::to_string(b) + "]", said, out);
        message.Fail(blocks[b].status());
      }
    }
    if (said.texts.empty() && !said.any)
      out->Say(said.role, {});
    else
      EndTexts(said, out);
    fields.Fail(message.status());
  }
  return said.role;
}

void ReadTools(JsonFields& fields, size_t max_tools, ChatBody* body) {
  std::vector<JsonFields> tools = fields.Objects("tools", max_tools);
  std::string list;
  for (size_t i = 0; i < tools.size(); ++i) {
    JsonFields& tool = tools[i];
    const std::string path = "tools[" + std::to_string(i) + "]";
    std::string type = "custom", description;
    tool.String("type", kMaxNameBytes, &type);
    if (type != "custom")
      tool.Fail(Unsupported(path + ".type", ": '" + type + "', only the client's own tools are"));
    const std::string name = ReadName(tool, "name", path);
    tool.String("description", kMaxTextBytes, &description);
    if (tool.Object("input_schema").empty() && tool.status().ok())
      tool.Fail(InvalidArgument(path + ".input_schema is missing", path + ".input_schema"));
    fields.Fail(tool.status());
    list += (i > 0 ? "," : "") +
            ChatTool(name, description, tool.JsonText("input_schema"), tool.JsonText("strict"));
  }
  if (!tools.empty()) body->Add("tools", "[" + list + "]");
}

void ReadToolChoice(JsonFields& fields, ChatBody* body) {
  for (JsonFields& choice : fields.Object("tool_choice")) {
    std::string type;
    choice.String("type", kMaxNameBytes, &type);
    if (type == "auto" || type == "none") {
      body->Add("tool_choice", JsonQuoted(type));
    } else if (type == "any") {
      body->Add("tool_choice", "\"required\"");
    } else if (type == "tool") {
      body->Add("tool_choice", "{\"type\":\"function\",\"function\":{\"name\":" +
                                   JsonQuoted(ReadName(choice, "name", "tool_choice")) + "}}");
    } else {
      choice.Fail(
          InvalidArgument("tool_choice.type must be auto, any, tool or none", "tool_choice.type"));
    }
    bool alone = false;
    choice.Bool("disable_parallel_tool_use", &alone);
    if (alone) body->Add("parallel_tool_calls", "false");
    fields.Fail(choice.status());
  }
}

// Returns how many tokens of reasoning there may be, -1: as many as come.
int ReadThinking(JsonFields& fields, int max_tokens, std::string* kwargs) {
  int budget = -1;
  for (JsonFields& thinking : fields.Object("thinking")) {
    std::string type;
    thinking.String("type", kMaxNameBytes, &type);
    if (type == "enabled") {
      if (!thinking.Has("budget_tokens"))
        thinking.Fail(
            InvalidArgument("thinking.budget_tokens is missing", "thinking.budget_tokens"));
      thinking.Int("budget_tokens", &budget);
      if (thinking.status().ok() && (budget < 1 || budget >= max_tokens)) {
        thinking.Fail(InvalidArgument("thinking.budget_tokens is " + std::to_string(budget) +
                                          "; it must be at least 1 and less than max_tokens",
                                      "thinking.budget_tokens"));
      }
    } else if (type != "disabled" && type != "adaptive") {
      thinking.Fail(
          InvalidArgument("thinking.type must be enabled, disabled or adaptive", "thinking.type"));
    }
    *kwargs = "\"enable_thinking\":" + std::string(type == "disabled" ? "false" : "true");
    fields.Fail(thinking.status());
  }
  return budget;
}

void ReadFormat(JsonFields& holder, const char* name, const std::string& path, ChatBody* body) {
  for (JsonFields& format : holder.Object(name)) {
    std::string type;
    format.String("type", kMaxNameBytes, &type);
    if (type != "json_schema")
      format.Fail(Unsupported(path + ".type", " other than json_schema"));
    else if (format.Object("schema").empty())
      format.Fail(InvalidArgument(path + ".schema is missing", path + ".schema"));
    holder.Fail(format.status());
    body->Add("response_format",
              "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"strict\":true,"
              "\"schema\":" +
                  format.JsonText("schema") + "}}");
  }
}

void ReadOutput(JsonFields& fields, std::string* kwargs, ChatBody* body) {
  if (fields.Has("output_config") && fields.Has("output_format"))
    fields.Fail(InvalidArgument("output_format and output_config say the same; give one of them",
                                "output_format"));
  ReadFormat(fields, "output_format", "output_format", body);
  for (JsonFields& config : fields.Object("output_config")) {
    ReadFormat(config, "format", "output_config.format", body);
    std::string effort;
    config.String("effort", kMaxNameBytes, &effort);
    if (!effort.empty())
      *kwargs += (kwargs->empty() ? "" : ",") + ("\"reasoning_effort\":" + JsonQuoted(effort));
    fields.Fail(config.status());
  }
}

}  // namespace

Result<MessagesChat> ChatOfMessages(std::string_view text, const OpenAiContext& context,
                                    bool answers) {
  Result<JsonFields> parsed = JsonFields::Parse(text);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  for (const std::string_view name : kUnsupported) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(name));
  }
  RefuseMembersBeyond(fields, {kKnown, kHarmless, kUnsupported, SamplingMembers()}, context.strict);
  if (answers && !fields.Has("max_tokens"))
    fields.Fail(InvalidArgument("max_tokens is missing", "max_tokens"));
  const int max_tokens = IntAtLeast(fields, "max_tokens", 1, 1 << 30);
  ChatBody body;
  ChatMessages messages;
  if (fields.Has("system")) messages.Say("system", ReadTexts(fields, "system", "system"));
  const std::string last_role = ReadMessages(fields, &messages);
  if (answers && last_role == "assistant") {
    fields.Fail(InvalidArgument(
        "messages ends with one of the assistant, and going on with it is not supported",
        "messages"));
  }
  body.Add("messages", "[" + messages.Take() + "]");
  std::vector<std::string> stops;
  fields.StringOrStrings("stop_sequences", context.limits->max_stop_strings, &stops);
  if (!stops.empty()) body.Add("stop", fields.JsonText("stop_sequences"));
  for (const char* name : {"model", "max_tokens", "stream"}) body.Copy(fields, name);
  body.CopySampling(fields);
  ReadTools(fields, context.limits->max_tools, &body);
  ReadToolChoice(fields, &body);
  std::string kwargs;
  const int max_reasoning_tokens = ReadThinking(fields, max_tokens, &kwargs);
  ReadOutput(fields, &kwargs, &body);
  if (!kwargs.empty()) body.Add("chat_template_kwargs", "{" + kwargs + "}");
  if (!fields.status().ok()) return fields.status();
  return MessagesChat{body.Take(), max_reasoning_tokens};
}

namespace {

Result<OpenAiRequest> Parse(std::string_view body, const OpenAiContext& context, bool answers) {
  const Result<MessagesChat> chat = ChatOfMessages(body, context, answers);
  if (!chat.ok()) return chat.status();
  Result<OpenAiRequest> request = ParseChatRequest(chat->body, context);
  if (request.ok() && chat->max_reasoning_tokens >= 0)
    request->generate.max_reasoning_tokens = chat->max_reasoning_tokens;
  return request;
}

}  // namespace

Result<OpenAiRequest> ParseMessagesRequest(std::string_view body, const OpenAiContext& context) {
  return Parse(body, context, /*answers=*/true);
}

Result<OpenAiRequest> ParseCountTokensRequest(std::string_view body, const OpenAiContext& context) {
  return Parse(body, context, /*answers=*/false);
}

}  // namespace diffserve
