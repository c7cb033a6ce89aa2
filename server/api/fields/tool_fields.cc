// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/tool_fields.h"

#include <algorithm>
#include <utility>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/api/fields/parameter_types.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

constexpr size_t kMaxCallIdBytes = 256;
constexpr size_t kMaxTypes = 7;  // of one schema
constexpr size_t kMaxAllowedTools = 4096;

// Stores the parameters' types. Arguments are always an object: a schema that also allows other
// types, or names no type, is treated as one of objects.
void ReadSchema(JsonFields& function, const char* name, const std::string& path, Tool* tool) {
  for (JsonFields& schema : function.Object(name)) {
    std::vector<std::string> types;
    tool->has_type = schema.Has("type");
    schema.StringOrStrings("type", kMaxTypes, &types);
    tool->only_objects = types == std::vector<std::string>{"object"};
    if (schema.status().ok() && tool->has_type &&
        std::ranges::find(types, "object") == types.end()) {
      const std::string member = path + "." + name + ".type";
      schema.Fail(NotAllowed(member + " is " + schema.JsonText("type"), "object", member));
    }
    function.Fail(schema.status());
  }
}

ToolChoice ReadChoice(JsonFields& fields, const std::vector<Tool>& tools) {
  ToolChoice choice;
  choice.kind = tools.empty() ? ToolChoice::Kind::kNone : ToolChoice::Kind::kAuto;
  fields.Bool("parallel_tool_calls", &choice.parallel);
  if (fields.IsOff("tool_choice")) return choice;
  constexpr const char* kChoices =
      "none, auto, required, {\"type\": \"function\", \"function\": {\"name\": ...}}, an object of "
      "the type allowed_tools";
  if (fields.IsString("tool_choice")) {
    std::string word;
    fields.String("tool_choice", kMaxNameBytes, &word);
    if (word == "none")
      choice.kind = ToolChoice::Kind::kNone;
    else if (word == "required")
      choice.kind = ToolChoice::Kind::kRequired;
    else if (word != "auto")
      fields.Fail(NotOneOf("tool_choice", word, kChoices));
    return choice;
  }
  for (JsonFields& object : fields.Object("tool_choice")) {
    std::string type;
    object.String("type", kMaxNameBytes, &type);
    if (type == "allowed_tools" && object.IsObject("allowed_tools")) {
      for (JsonFields& allowed : object.Object("allowed_tools")) {
        ReadAllowedTools(allowed, /*in_chat=*/true, tools, &choice);
        fields.Fail(allowed.status());
      }
      return choice;
    }
    for (JsonFields& function : object.Object("function")) {
      function.String("name", kMaxNameBytes, &choice.name);
      object.Fail(function.status());
    }
    fields.Fail(object.status());
    if (type != "function" || choice.name.empty())
      fields.Fail(NotAllowed("tool_choice is an object of another kind", kChoices, "tool_choice"));
    choice.kind = ToolChoice::Kind::kNamed;
  }
  return choice;
}

// `reasoning_effort` becomes a template variable; the value none turns reasoning off if the
// template has a switch for it.
void ReadReasoning(JsonFields& fields, Conversation* chat) {
  bool switched = false, effort_given = false;
  for (JsonFields& kwargs : fields.Object("chat_template_kwargs")) {
    for (const char* name : {"enable_thinking", "thinking"}) {
      bool thinks = true;
      switched |= kwargs.Has(name);
      kwargs.Bool(name, &thinks);
      chat->own_thinking_off |= !thinks;
    }
    effort_given = kwargs.Has("reasoning_effort");
    fields.Fail(kwargs.status());
  }
  std::string effort;
  fields.String("reasoning_effort", kMaxEffortBytes, &effort);
  if (!effort_given) SetReasoningEffort(std::move(effort), switched, chat);
}

// A call: a function with arguments (text or object), or a custom tool with its input text.
ToolCall ReadCall(JsonFields& call, const std::string& path) {
  ToolCall read;
  std::string type = "function", arguments;
  call.String("id", kMaxCallIdBytes, &read.id);
  call.String("type", kMaxNameBytes, &type);
  const bool custom = type == "custom";
  if (!custom && type != "function") call.Fail(Unsupported(path + ".type", " other than function"));
  const char* const member = custom ? "custom" : "function";
  for (JsonFields& function : call.Object(member)) {
    function.String("name", kMaxNameBytes, &read.name);
    if (function.IsObject("arguments"))
      arguments = function.JsonText("arguments");
    else
      function.String(custom ? "input" : "arguments", kMaxTextBytes, &arguments);
    call.Fail(function.status());
  }
  if (read.name.empty()) {
    const std::string place = path + "." + member + ".name";
    call.Fail(Missing(place));
  }
  read.arguments = custom ? TextArguments(arguments) : CallArguments(arguments);
  return read;
}

}  // namespace

void ReadAllowedTools(JsonFields& allowed, bool in_chat, const std::vector<Tool>& tools,
                      ToolChoice* choice) {
  const std::string path = in_chat ? "tool_choice.allowed_tools" : "tool_choice";
  std::string mode;
  allowed.String("mode", kMaxNameBytes, &mode);
  if (allowed.status().ok() && mode != "auto" && mode != "required")
    allowed.Fail(NotOneOf(path + ".mode", mode, "auto, required"));
  choice->kind = mode == "required" ? ToolChoice::Kind::kRequired : ToolChoice::Kind::kAuto;
  std::vector<JsonFields> entries = allowed.Objects("tools", kMaxAllowedTools);
  if (entries.empty()) {
    allowed.Fail(Missing(path + ".tools", "at least 1 tool of the request"));
  }
  choice->allowed.emplace();
  for (size_t i = 0; i < entries.size() && allowed.status().ok(); ++i) {
    JsonFields& entry = entries[i];
    if (IsToolOfOthers(entry, "function")) continue;
    std::string name;
    if (!in_chat) entry.String("name", kMaxNameBytes, &name);
    for (JsonFields& function : in_chat ? entry.Object("function") : std::vector<JsonFields>()) {
      function.String("name", kMaxNameBytes, &name);
      entry.Fail(function.status());
    }
    if (std::ranges::find(tools, name, &Tool::name) == tools.end()) {
      const std::string member = path + ".tools[" + std::to_string(i) + "]." +
                                 (in_chat ? "function.name" : "name");
      entry.Fail(NotOneOf(member, name, "the client's own tools"));
    }
    choice->allowed->push_back(std::move(name));
    allowed.Fail(entry.status());
  }
}

bool IsToolOfOthers(JsonFields& tool, std::string_view own) {
  std::string type(own);
  tool.String("type", kMaxNameBytes, &type);
  return tool.status().ok() && !type.empty() && type != own;
}

Tool ReadFunction(JsonFields& function, const char* schema, const std::string& path) {
  Tool read;
  function.String("name", kMaxNameBytes, &read.name);
  if (function.status().ok() && !IsToolName(read.name)) {
    function.Fail(
        NotOneOf(path + ".name", read.name,
                 RangeText(1, kMaxToolNameBytes) + " letters, digits, underscores and dashes"));
  }
  function.String("description", kMaxToolsBytes, &read.description);
  function.Bool("strict", &read.strict);
  if (!function.IsObject(schema) && function.JsonText(schema) == "true") {
    read.parameters_json = "{}";
  } else {
    function.ObjectText(schema, kMaxToolsBytes, &read.parameters_json);
    ReadSchema(function, schema, path, &read);
  }
  read.parameter_types = ParameterTypesOf(read.parameters_json);
  return read;
}

Status AddTool(Tool tool, const std::string& name_path, std::vector<Tool>* tools) {
  if (std::ranges::find(*tools, tool.name, &Tool::name) != tools->end())
    return NotAllowed(name_path + " repeats the name of an earlier tool", "a name of its own",
                      name_path);
  tools->push_back(std::move(tool));
  size_t bytes = 0;
  for (const Tool& each : *tools)
    bytes += each.name.size() + each.description.size() + each.parameters_json.size();
  if (bytes <= kMaxToolsBytes) return {};
  return TooMany(name_path.substr(0, name_path.find('[')), bytes,
                 "bytes of names, descriptions and schemas", kMaxToolsBytes);
}

std::vector<Tool> ReadToolList(JsonFields& fields, const std::string& name) {
  std::vector<Tool> tools;
  std::vector<JsonFields> entries = fields.Objects(name, kMaxTools);
  for (size_t i = 0; i < entries.size() && fields.status().ok(); ++i) {
    JsonFields& entry = entries[i];
    if (IsToolOfOthers(entry, "function")) continue;
    const std::string path = name + "[" + std::to_string(i) + "].function";
    if (!entry.Has("function")) entry.Fail(Missing(path));
    for (JsonFields& function : entry.Object("function")) {
      Tool tool = ReadFunction(function, "parameters", path);
      function.Fail(AddTool(std::move(tool), path + ".name", &tools));
      entry.Fail(function.status());
    }
    fields.Fail(entry.status());
  }
  return tools;
}

Status PlanTools(const ToolChoice& choice, const AnswerFormats& formats, AnswerRequest* request) {
  GenerateRequest& generate = request->generate;
  const auto& chat = std::get<Conversation>(generate.prompts.front());
  Result<AnswerPlan> plan = PlanAnswer(chat.tools, choice, formats, generate.names.tools);
  if (!plan.ok()) return plan.status();
  if (plan->form.tools != nullptr && generate.grammar) {
    DS_RETURN_IF_ERROR(PlanBesideForm(chat.tools, choice, formats, &*plan));
    generate.call_marker = plan->form.tools->begin;
    generate.call_grammar = std::move(plan->grammar);
    if (generate.call_grammar) generate.call_grammar->param = generate.names.tools;
  } else if (plan->grammar) {
    generate.grammar = std::move(plan->grammar);
    generate.grammar->param = generate.names.tools;
  }
  generate.reasoning = plan->form.reasoning;
  plan->form.has_form = generate.grammar.has_value();
  request->hides_eos = plan->shows_special_tokens && generate.skip_special_tokens;
  if (request->hides_eos) generate.skip_special_tokens = false;
  request->answer = std::move(plan->form);
  return {};
}

void ReadTools(JsonFields& fields, const AnswerFormats& formats, AnswerRequest* request) {
  auto& chat = std::get<Conversation>(request->generate.prompts.front());
  chat.tools = ReadToolList(fields, "tools");
  const ToolChoice choice = ReadChoice(fields, chat.tools);
  ReadReasoning(fields, &chat);
  fields.Bool("include_reasoning", &request->include_reasoning);
  if (fields.status().ok()) fields.Fail(PlanTools(choice, formats, request));
}

void ReadAssistantMembers(JsonFields& message, const std::string& path, Message* read) {
  std::vector<JsonFields> calls = message.Objects("tool_calls", AnswerParser::kMaxCalls);
  for (size_t i = 0; i < calls.size() && message.status().ok(); ++i) {
    read->calls.push_back(ReadCall(calls[i], path + ".tool_calls[" + std::to_string(i) + "]"));
    message.Fail(calls[i].status());
  }
  for (const char* name : {"reasoning", "reasoning_content"})
    message.String(name, kMaxTextBytes, &read->reasoning);
}

void ReadToolMembers(JsonFields& message, const std::string& path, Message* read) {
  message.String("tool_call_id", kMaxCallIdBytes, &read->tool_call_id);
  if (read->tool_call_id.empty()) {
    message.Fail(Missing(path + ".tool_call_id"));
  }
}

}  // namespace diffserve
