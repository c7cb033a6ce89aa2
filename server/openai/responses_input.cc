#include "server/openai/responses_input.h"

#include <string>
#include <utility>
#include <vector>

#include "server/openai/chat_body.h"
#include "server/openai/chat_fields.h"
#include "server/request_checks.h"
#include "server/trace_context.h"

namespace diffserve {
namespace {

constexpr size_t kMaxParts = 4096;  // of one item

// A string, or parts of one of these types.
std::vector<std::string> ReadTexts(JsonFields& item, const char* name, const std::string& path) {
  std::vector<std::string> texts;
  const std::string at = path + "." + name;
  if (!item.Has(name)) item.Fail(InvalidArgument(at + " is missing", at));
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
      part.Fail(InvalidArgument(at + " has a part without " + member, at));
    part.String(member, kMaxTextBytes, &texts.emplace_back());
    item.Fail(part.status());
    if (!item.status().ok()) break;
  }
  return texts;
}

// Reads the items of one request.
class InputReader {
 public:
  explicit InputReader(ResponsesRequest* request) : request_(request) {}

  void Say(const std::string& role, const std::vector<std::string>& texts) {
    messages_.Say(role, texts);
    const bool output = role == "assistant";
    std::string content;
    for (const std::string& text : texts) {
      content += std::string(content.empty() ? "" : ",") + "{\"type\":\"" +
                 (output ? "output_text" : "input_text") + "\",\"text\":" + JsonQuoted(text) +
                 (output ? ",\"annotations\":[]}" : "}");
    }
    Keep("msg_", "\"type\":\"message\",\"status\":\"completed\",\"role\":" + JsonQuoted(role) +
                     ",\"content\":[" + content + "]");
  }
  void ReadItem(JsonFields& item, const std::string& path);
  void Finish() { request_->messages = messages_.Take(); }

 private:
  std::string Text(JsonFields& item, const char* name, size_t max_bytes, const std::string& path) {
    std::string text;
    if (!item.Has(name)) {
      const std::string member = path + "." + name;
      item.Fail(InvalidArgument(member + " is missing", member));
    }
    item.String(name, max_bytes, &text);
    return text;
  }
  void ReadMessage(JsonFields& item, const std::string& path);
  void ReadCall(JsonFields& item, const std::string& path);
  void ReadCallOutput(JsonFields& item, const std::string& path);
  void Keep(const char* prefix, const std::string& members) {
    const std::string id = prefix + RandomHex16() + RandomHex16();
    request_->input.item_ids.push_back(id);
    request_->input.items.push_back("{\"id\":\"" + id + "\"," + members + "}");
  }

  ResponsesRequest* const request_;
  ChatMessages messages_;
};

void InputReader::ReadMessage(JsonFields& item, const std::string& path) {
  const std::string role = Text(item, "role", kMaxNameBytes, path);
  if (item.status().ok()) item.Fail(CheckRole(role, path, ToolMessages::kRefused));
  if (item.status().ok() && role == "tool")
    item.Fail(InvalidArgument(path + ".role is tool; give a function_call_output instead",
                              path + ".role"));
  const std::vector<std::string> texts = ReadTexts(item, "content", path);
  if (item.status().ok()) Say(role, texts);
}

void InputReader::ReadCall(JsonFields& item, const std::string& path) {
  const std::string id = Text(item, "call_id", kMaxNameBytes, path);
  const std::string name = Text(item, "name", kMaxNameBytes, path);
  const std::string arguments = Text(item, "arguments", kMaxTextBytes, path);
  if (item.status().ok() && !JsonFields::Parse(arguments).ok()) {
    item.Fail(
        InvalidArgument(path + ".arguments is not the text of a JSON object", path + ".arguments"));
  }
  if (!item.status().ok()) return;
  messages_.Call(id, name, arguments);
  Keep("fc_", "\"type\":\"function_call\",\"status\":\"completed\",\"call_id\":" + JsonQuoted(id) +
                  ",\"name\":" + JsonQuoted(name) + ",\"arguments\":" + JsonQuoted(arguments));
}

void InputReader::ReadCallOutput(JsonFields& item, const std::string& path) {
  const std::string id = Text(item, "call_id", kMaxNameBytes, path);
  std::string text;
  for (const std::string& part : ReadTexts(item, "output", path))
    text += (text.empty() ? "" : "\n") + part;
  if (!item.status().ok()) return;
  messages_.Answer(id, text);
  Keep("fco_", "\"type\":\"function_call_output\",\"status\":\"completed\",\"call_id\":" +
                   JsonQuoted(id) + ",\"output\":" + JsonQuoted(text));
}

void InputReader::ReadItem(JsonFields& item, const std::string& path) {
  std::string type = "message";
  item.String("type", kMaxNameBytes, &type);
  if (!item.status().ok()) return;
  if (type == "message") {
    ReadMessage(item, path);
  } else if (type == "function_call") {
    ReadCall(item, path);
  } else if (type == "function_call_output") {
    ReadCallOutput(item, path);
  } else if (type != "reasoning") {  // which is not shown to a model again
    item.Fail(Unsupported(path + ".type", ": '" + type.substr(0, 64) +
                                              "', only message, function_call, "
                                              "function_call_output and reasoning are"));
  }
}

}  // namespace

void ReadResponsesInput(JsonFields& fields, ResponsesRequest* request) {
  InputReader reader(request);
  if (fields.IsString("input")) {
    std::string text;
    fields.String("input", kMaxTextBytes, &text);
    reader.Say("user", {text});
  } else {
    if (!fields.Has("input")) fields.Fail(InvalidArgument("input is missing", "input"));
    std::vector<JsonFields> items = fields.Objects("input", kMaxMessages);
    if (items.empty()) fields.Fail(InvalidArgument("input is an empty list", "input"));
    for (size_t i = 0; i < items.size() && fields.status().ok(); ++i) {
      reader.ReadItem(items[i], "input[" + std::to_string(i) + "]");
      fields.Fail(items[i].status());
    }
  }
  reader.Finish();
}

}  // namespace diffserve
