// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses/input.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/api/head/random_id.h"
#include "server/api/responses/encoder.h"
#include "server/json/json_writer.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxParts = 4096;  // of one item

// Items that are not shown to a model again: reasoning, and what the vendor's tools ran, listed or
// keep in a format of their own.
constexpr std::string_view kLeftOut[] = {"reasoning",
                                         "compaction",
                                         "compaction_summary",
                                         "context_compaction",
                                         "web_search_call",
                                         "file_search_call",
                                         "image_generation_call",
                                         "code_interpreter_call",
                                         "tool_search_call",
                                         "tool_search_output",
                                         "mcp_list_tools",
                                         "mcp_call",
                                         "mcp_approval_request",
                                         "mcp_approval_response",
                                         "ghost_snapshot",
                                         "other"};

// A call that the client ran, of a tool that is not one of its functions.
struct ClientCall {
  std::string_view type;
  const char* name;    // the tool's name; nullptr: from the call
  const char* member;  // the tool's input
};
constexpr ClientCall kClientCalls[] = {{"custom_tool_call", nullptr, "input"},
                                       {"local_shell_call", "local_shell", "action"},
                                       {"shell_call", "shell", "action"},
                                       {"apply_patch_call", "apply_patch", "operation"}};
constexpr std::string_view kClientOutputs[] = {"function_call_output", "custom_tool_call_output",
                                               "local_shell_call_output", "shell_call_output",
                                               "apply_patch_call_output"};

// A string, or parts of one of these types; absent or null: nothing.
std::vector<std::string> ReadItemTexts(JsonFields& item, const char* name,
                                       const std::string& path) {
  std::vector<std::string> texts;
  const std::string at = path + "." + name;
  if (item.IsString(name)) {
    item.String(name, kMaxTextBytes, &texts.emplace_back());
    return texts;
  }
  for (JsonFields& part : item.Objects(name, kMaxParts)) {
    std::string type;
    part.String("type", kMaxNameBytes, &type);
    const bool refusal = type == "refusal";
    if (part.status().ok() && !refusal && type != "input_text" && type != "output_text" &&
        type != "text") {
      part.Fail(Unsupported(at, ": a part of type '" + type.substr(0, 64) + "', only text is"));
    }
    const char* const member = refusal ? "refusal" : "text";
    if (part.status().ok() && !part.Has(member))
      part.Fail(NotAllowed(at + " has a part without " + member, "parts with it", at));
    part.String(member, kMaxTextBytes, &texts.emplace_back());
    item.Fail(part.status());
    if (!item.status().ok()) break;
  }
  return texts;
}

// Reads the items of one request.
class InputReader {
 public:
  InputReader(ResponsesRequest* request, const FindResponseItem& find)
      : request_(request), find_(find) {}

  void Say(const std::string& role, const std::vector<std::string>& texts) {
    messages_.Say(role, texts);
    const bool output = role == "assistant";
    Keep("msg_", "message", [&](JsonWriter& json) {
      json.Add("role", role).Key("content").Begin('[');
      for (const std::string& text : texts) {
        json.Begin('{').Add("type", output ? "output_text" : "input_text").Add("text", text);
        if (output) json.Key("annotations").Begin('[').End(']');
        json.End('}');
      }
      json.End(']');
    });
  }
  void ReadItem(JsonFields& item, const std::string& path);
  void Finish() { request_->messages = messages_.Take(); }

 private:
  std::string Text(JsonFields& item, const char* name, size_t max_bytes, const std::string& path) {
    std::string text;
    if (!item.Has(name)) {
      const std::string member = path + "." + name;
      item.Fail(Missing(member));
    }
    item.String(name, max_bytes, &text);
    return text;
  }
  void ReadMessage(JsonFields& item, const std::string& path);
  void ReadCall(JsonFields& item, const std::string& path);
  void ReadClientCall(JsonFields& item, const ClientCall& call, const std::string& path);
  void ReadCallOutput(JsonFields& item, const std::string& type, const std::string& path);
  void ReadReference(JsonFields& item, const std::string& path);
  void Call(const std::string& id, const std::string& name, const std::string& arguments);
  // Keeps an item for the list of a response's input; `write` adds its own members.
  void Keep(const char* prefix, const char* type, const std::function<void(JsonWriter&)>& write) {
    const std::string id = prefix + RandomHex(32);
    request_->input.item_ids.push_back(id);
    JsonWriter json(&request_->input.items.emplace_back());
    json.Begin('{').Add("id", id).Add("type", type).Add("status", "completed");
    write(json);
    json.End('}');
  }

  ResponsesRequest* const request_;
  const FindResponseItem& find_;
  TurnList messages_;
};

void InputReader::ReadMessage(JsonFields& item, const std::string& path) {
  const std::string role = Text(item, "role", kMaxNameBytes, path);
  if (item.status().ok()) item.Fail(CheckRole(role, path, ToolMessages::kRefused));
  if (item.status().ok() && role == "tool")
    item.Fail(
        NotAllowed(path + ".role is tool", "an item function_call_output instead", path + ".role"));
  if (role != "assistant" && !item.Has("content")) item.Fail(Missing(path + ".content"));
  const std::vector<std::string> texts = ReadItemTexts(item, "content", path);
  if (item.status().ok()) Say(role, texts);
}

void InputReader::Call(const std::string& id, const std::string& name,
                       const std::string& arguments) {
  messages_.Call(id, name, arguments);
  Keep("fc_", "function_call", [&](JsonWriter& json) {
    json.Add("call_id", id).Add("name", name).Add("arguments", arguments);
  });
}

void InputReader::ReadCall(JsonFields& item, const std::string& path) {
  const std::string id = Text(item, "call_id", kMaxNameBytes, path);
  const std::string name = Text(item, "name", kMaxNameBytes, path);
  std::string arguments;
  if (item.IsObject("arguments"))
    arguments = item.JsonText("arguments");
  else
    item.String("arguments", kMaxTextBytes, &arguments);
  if (item.status().ok()) Call(id, name, arguments);
}

void InputReader::ReadClientCall(JsonFields& item, const ClientCall& call,
                                 const std::string& path) {
  const std::string id = Text(item, item.Has("call_id") ? "call_id" : "id", kMaxNameBytes, path);
  const std::string name = call.name != nullptr ? call.name
                                                : Text(item, "name", kMaxNameBytes, path);
  std::string given;
  if (item.IsString(call.member)) {
    item.String(call.member, kMaxTextBytes, &given);
    given = TextArguments(given);
  } else if (!item.Object(call.member).empty()) {
    given = item.JsonText(call.member);
  }
  if (item.status().ok()) Call(id, name, given);
}

// A shell's output may be a list of its commands' outputs.
std::vector<std::string> ReadShellOutput(JsonFields& item) {
  std::vector<std::string> texts;
  for (JsonFields& command : item.Objects("output", kMaxParts)) {
    for (const char* name : {"stdout", "stderr"}) {
      std::string text;
      command.String(name, kMaxTextBytes, &text);
      if (!text.empty()) texts.push_back(std::move(text));
    }
    item.Fail(command.status());
  }
  return texts;
}

void InputReader::ReadCallOutput(JsonFields& item, const std::string& type,
                                 const std::string& path) {
  const bool by_id = !item.Has("call_id") && type == "local_shell_call_output";
  const std::string id = Text(item, by_id ? "id" : "call_id", kMaxNameBytes, path);
  const bool of_shell = type == "shell_call_output" && !item.IsString("output");
  std::string text;
  for (const std::string& part :
       of_shell ? ReadShellOutput(item) : ReadItemTexts(item, "output", path))
    text += (text.empty() ? "" : "\n") + part;
  if (!item.status().ok()) return;
  messages_.Answer(id, text);
  Keep("fco_", "function_call_output",
       [&](JsonWriter& json) { json.Add("call_id", id).Add("output", text); });
}

// An item of a stored answer.
void InputReader::ReadReference(JsonFields& item, const std::string& path) {
  const std::string id = Text(item, "id", kMaxNameBytes, path);
  if (!item.status().ok()) return;
  const std::optional<ResponseItem> found = find_ ? find_(id) : std::nullopt;
  if (!found) {
    item.Fail(
        InvalidArgument(path + ".id: there is no item '" + id.substr(0, 64) +
                            "' of an answer here, or it is no longer kept; send the item itself",
                        path + ".id"));
  } else if (found->kind == AnswerPart::Kind::kContent) {
    Say("assistant", {found->text});
  } else if (found->kind == AnswerPart::Kind::kToolCall) {
    Call(found->call_id, found->name, found->text);
  }
}

void InputReader::ReadItem(JsonFields& item, const std::string& path) {
  std::string type = "message";
  item.String("type", kMaxNameBytes, &type);
  if (!item.status().ok()) return;
  if (type == "message") return ReadMessage(item, path);
  if (type == "function_call") return ReadCall(item, path);
  if (type == "item_reference") return ReadReference(item, path);
  if (std::ranges::find(kClientOutputs, type) != std::end(kClientOutputs))
    return ReadCallOutput(item, type, path);
  const auto* const call = std::ranges::find(kClientCalls, type, &ClientCall::type);
  if (call != std::end(kClientCalls)) return ReadClientCall(item, *call, path);
  if (std::ranges::find(kLeftOut, type) != std::end(kLeftOut)) return;
  item.Fail(Unsupported(path + ".type", ": '" + type.substr(0, 64) +
                                            "', only messages, calls of the client's tools, their "
                                            "outputs, references and reasoning are"));
}

}  // namespace

void ReadResponsesInput(JsonFields& fields, const FindResponseItem& find,
                        ResponsesRequest* request) {
  InputReader reader(request, find);
  if (fields.IsString("input")) {
    std::string text;
    fields.String("input", kMaxTextBytes, &text);
    reader.Say("user", {text});
  } else {
    if (!fields.Has("input")) fields.Fail(Missing("input"));
    std::vector<JsonFields> items = fields.Objects("input", kMaxMessages);
    if (items.empty()) fields.Fail(IsEmpty("input", "at least 1 item"));
    for (size_t i = 0; i < items.size() && fields.status().ok(); ++i) {
      reader.ReadItem(items[i], "input[" + std::to_string(i) + "]");
      fields.Fail(items[i].status());
    }
  }
  reader.Finish();
}

}  // namespace diffserve
