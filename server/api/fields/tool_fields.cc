// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/tool_fields.h"

#include <algorithm>
#include <utility>

#include "server/api/fields/chat_fields.h"
#include "server/api/fields/parameter_types.h"
#include "server/serving/request_checks.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

constexpr size_t kMaxCallIdBytes = 256;
constexpr size_t kMaxEffortBytes = 32;
constexpr size_t kMaxTypes = 7;  // of one schema

// Stores the parameters' types. Arguments are always an object: a schema that also allows other
// types, or names no type, is treated as one of objects.
void ReadParameters(JsonFields& function, const std::string& path, Tool* tool) {
  for (JsonFields& schema : function.Object("parameters")) {
    std::vector<std::string> types;
    tool->has_type = schema.Has("type");
    schema.StringOrStrings("type", kMaxTypes, &types);
    tool->only_objects = types == std::vector<std::string>{"object"};
    if (schema.status().ok() && tool->has_type &&
        std::ranges::find(types, "object") == types.end()) {
      schema.Fail(InvalidArgument(
          path + ".parameters.type is " + schema.JsonText("type") + "; expected is object",
          path + ".parameters.type"));
    }
    function.Fail(schema.status());
  }
}

ToolChoice ReadChoice(JsonFields& fields, bool any_tools) {
  ToolChoice choice;
  choice.kind = any_tools ? ToolChoice::Kind::kAuto : ToolChoice::Kind::kNone;
  fields.Bool("parallel_tool_calls", &choice.parallel);
  if (fields.IsOff("tool_choice")) return choice;
  constexpr const char* kAllowed =
      "tool_choice must be none, auto, required or {\"type\": \"function\", \"function\": "
      "{\"name\": ...}}";
  if (fields.IsString("tool_choice")) {
    std::string word;
    fields.String("tool_choice", kMaxNameBytes, &word);
    if (word == "none")
      choice.kind = ToolChoice::Kind::kNone;
    else if (word == "required")
      choice.kind = ToolChoice::Kind::kRequired;
    else if (word != "auto")
      fields.Fail(InvalidArgument(kAllowed, "tool_choice"));
    return choice;
  }
  for (JsonFields& object : fields.Object("tool_choice")) {
    std::string type;
    object.String("type", kMaxNameBytes, &type);
    for (JsonFields& function : object.Object("function")) {
      function.String("name", kMaxNameBytes, &choice.name);
      object.Fail(function.status());
    }
    fields.Fail(object.status());
    if (type != "function" || choice.name.empty())
      fields.Fail(InvalidArgument(kAllowed, "tool_choice"));
    choice.kind = ToolChoice::Kind::kNamed;
  }
  return choice;
}

// Adds a member to an object's text.
void AddMember(std::string_view name, const std::string& value, std::string* object) {
  object->pop_back();
  if (object->back() != '{') *object += ',';
  *object += JsonQuoted(name) + ':' + value + '}';
}

// `reasoning_effort` becomes a template variable; the value none turns reasoning off if the
// template has a switch for it.
void ReadReasoning(JsonFields& fields, ChatPrompt* chat) {
  bool switched = false, effort_given = false;
  for (JsonFields& kwargs : fields.Object("chat_template_kwargs")) {
    for (const char* name : {"enable_thinking", "thinking"}) {
      bool thinks = true;
      switched |= kwargs.Has(name);
      kwargs.Bool(name, &thinks);
    }
    effort_given = kwargs.Has("reasoning_effort");
    fields.Fail(kwargs.status());
  }
  std::string effort;
  fields.String("reasoning_effort", kMaxEffortBytes, &effort);
  if (effort.empty() || effort_given || !fields.status().ok()) return;
  AddMember("reasoning_effort", JsonQuoted(effort), &chat->template_kwargs_json);
  if (effort == "none" && !switched)
    AddMember("enable_thinking", "false", &chat->template_kwargs_json);
}

// A call: a function with arguments (text or object), or a custom tool with its input text.
std::string ReadCall(JsonFields& call, const std::string& path) {
  std::string id, type = "function", name, arguments;
  call.String("id", kMaxCallIdBytes, &id);
  call.String("type", kMaxNameBytes, &type);
  const bool custom = type == "custom";
  if (!custom && type != "function") call.Fail(Unsupported(path + ".type", " other than function"));
  const char* const member = custom ? "custom" : "function";
  for (JsonFields& function : call.Object(member)) {
    function.String("name", kMaxNameBytes, &name);
    if (function.IsObject("arguments"))
      arguments = function.JsonText("arguments");
    else
      function.String(custom ? "input" : "arguments", kMaxTextBytes, &arguments);
    call.Fail(function.status());
  }
  if (name.empty()) {
    const std::string place = path + "." + member + ".name";
    call.Fail(InvalidArgument(place + " is missing", place));
  }
  std::string json = "{";
  if (!id.empty()) json += "\"id\":" + JsonQuoted(id) + ',';
  return json + "\"type\":\"function\",\"function\":{\"name\":" + JsonQuoted(name) +
         ",\"arguments\":" + (custom ? CustomArguments(arguments) : CallArguments(arguments)) +
         "}}";
}

std::string ReadCalls(JsonFields& message, const std::string& path) {
  std::string json;
  std::vector<JsonFields> calls = message.Objects("tool_calls", AnswerParser::kMaxCalls);
  for (size_t i = 0; i < calls.size() && message.status().ok(); ++i) {
    json += (i == 0 ? "" : ",") +
            ReadCall(calls[i], path + ".tool_calls[" + std::to_string(i) + "]");
    message.Fail(calls[i].status());
  }
  return json.empty() ? json : ",\"tool_calls\":[" + json + ']';
}

}  // namespace

bool IsToolOfOthers(JsonFields& tool, std::string_view own) {
  std::string type(own);
  tool.String("type", kMaxNameBytes, &type);
  return tool.status().ok() && !type.empty() && type != own;
}

std::string CallArguments(const std::string& text) {
  if (IsJsonObject(text)) return text;
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const std::string_view bare = std::string_view(text).substr(
      begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (bare.empty() || bare == "null" || bare == "[]") return "{}";
  return "{\"INVALID_JSON\":" + JsonQuoted(text) + "}";
}

std::string CustomArguments(std::string_view text) {
  return "{\"input\":" + JsonQuoted(text) + "}";
}

Tool ReadTool(JsonFields& tool, const std::string& path, const FrontendOptions& limits) {
  Tool read;
  std::string type;
  tool.String("type", kMaxNameBytes, &type);
  if (tool.status().ok() && !type.empty() && type != "function")
    tool.Fail(Unsupported(path + ".type", " other than function"));
  const std::string inner = path + ".function";
  if (!tool.Has("function")) tool.Fail(InvalidArgument(inner + " is missing", inner));
  for (JsonFields& function : tool.Object("function")) {
    function.String("name", kMaxNameBytes, &read.name);
    if (function.status().ok() && !IsToolName(read.name)) {
      function.Fail(InvalidArgument(inner + ".name must be 1 to " +
                                        std::to_string(kMaxToolNameBytes) +
                                        " letters, digits, underscores and dashes",
                                    inner + ".name"));
    }
    function.String("description", limits.max_tools_bytes, &read.description);
    function.Bool("strict", &read.strict);
    if (!function.IsObject("parameters") && function.JsonText("parameters") == "true") {
      read.parameters_json = "{}";
    } else {
      function.ObjectText("parameters", limits.max_tools_bytes, &read.parameters_json);
      ReadParameters(function, inner, &read);
    }
    read.parameter_types = ParameterTypesOf(read.parameters_json);
    tool.Fail(function.status());
  }
  return read;
}

std::vector<Tool> ReadToolList(JsonFields& fields, const FrontendOptions& limits) {
  std::vector<Tool> tools;
  std::vector<JsonFields> entries = fields.Objects("tools", limits.max_tools);
  size_t bytes = 0;
  for (size_t i = 0; i < entries.size() && fields.status().ok(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (IsToolOfOthers(entries[i], "function")) continue;
    Tool tool = ReadTool(entries[i], path, limits);
    fields.Fail(entries[i].status());
    bytes += tool.name.size() + tool.description.size() + tool.parameters_json.size();
    if (bytes > limits.max_tools_bytes) {
      fields.Fail(InvalidArgument("tools has more than " + std::to_string(limits.max_tools_bytes) +
                                      " bytes of names, descriptions and schemas",
                                  "tools"));
    }
    if (std::ranges::find(tools, tool.name, &Tool::name) != tools.end()) {
      fields.Fail(InvalidArgument(path + ".function.name repeats the name of an earlier tool",
                                  path + ".function.name"));
    }
    tools.push_back(std::move(tool));
  }
  return tools;
}

void ReadTools(JsonFields& fields, const FrontendOptions& limits, OpenAiRequest* request) {
  GenerateRequest& generate = request->generate;
  auto& chat = std::get<ChatPrompt>(generate.prompts.front());
  const std::vector<Tool> tools = ReadToolList(fields, limits);
  const ToolChoice choice = ReadChoice(fields, !tools.empty());
  ReadReasoning(fields, &chat);
  fields.Bool("include_reasoning", &request->include_reasoning);
  if (!fields.status().ok()) return;
  Result<AnswerPlan> plan = PlanAnswer(tools, choice, limits.formats);
  if (!plan.ok()) return fields.Fail(plan.status());
  chat.tools_json = ToolsJson(tools);
  if (plan->form.tools != nullptr && generate.grammar) {
    fields.Fail(CheckBesideForm(*plan->form.tools));
    generate.call_marker = plan->form.tools->begin;
    generate.call_grammar = std::move(plan->grammar);
  } else if (plan->grammar) {
    generate.grammar = std::move(plan->grammar);
  }
  generate.reasoning = plan->form.reasoning;
  request->hides_eos = plan->shows_special_tokens && generate.skip_special_tokens;
  if (request->hides_eos) generate.skip_special_tokens = false;
  request->answer = std::move(plan->form);
}

std::string ReadAssistantMembers(JsonFields& message, const std::string& path) {
  std::string json = ReadCalls(message, path), reasoning;
  for (const char* name : {"reasoning", "reasoning_content"})
    message.String(name, kMaxTextBytes, &reasoning);
  if (!reasoning.empty()) json += ",\"reasoning_content\":" + JsonQuoted(reasoning);
  return json;
}

std::string ReadToolMembers(JsonFields& message, const std::string& path) {
  std::string id;
  message.String("tool_call_id", kMaxCallIdBytes, &id);
  if (id.empty()) {
    message.Fail(InvalidArgument(path + ".tool_call_id is missing", path + ".tool_call_id"));
  }
  return ",\"tool_call_id\":" + JsonQuoted(id);
}

}  // namespace diffserve
