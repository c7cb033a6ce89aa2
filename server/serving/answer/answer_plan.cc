// SPDX-License-Identifier: Apache-2.0
#include "server/serving/answer/answer_plan.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "kernels/base/refusal.h"
#include "server/json/json.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

// How a call in JSON begins, as models write it.
std::string CallOpening(const Tool& tool) {
  return "{\"name\": " + JsonQuoted(tool.name) + ", \"arguments\": ";
}

GrammarSpec Grammar(GrammarSpec::Kind kind, std::string text) {
  return {.kind = kind, .text = std::move(text), .is_of_tools = true};
}

// Each schema is embedded as a whole, so that the references inside it hold.
GrammarSpec RequiredGrammar(const std::vector<Tool>& tools, bool parallel) {
  std::string text = "start: \"[\" call ";
  if (parallel) text += "(\", \" call){0," + std::to_string(kMaxRequiredCalls - 1) + "} ";
  text += "\"]\"\ncall: ";
  for (size_t i = 0; i < tools.size(); ++i)
    text += (i > 0 ? " | call_" : "call_") + std::to_string(i);
  text += '\n';
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string index = std::to_string(i);
    text += "call_" + index + ": " + JsonQuoted(CallOpening(tools[i])) + " arguments_" + index +
            " \"}\"\n";
    text += "arguments_" + index + ": %json " + ObjectSchema(tools[i]) + '\n';
  }
  return Grammar(GrammarSpec::Kind::kLark, std::move(text));
}

// In a call that the model opens by itself, the functions that are not strict may have any object.
GrammarSpec StrictGrammar(const std::vector<Tool>& tools, const ToolFormat& format) {
  const std::string begin(format.begin);
  std::string text, any_object;
  JsonWriter(&any_object).Begin('{').Add("type", "object").End('}');
  JsonWriter json(&text);
  json.Begin('{').Key("structures").Begin('[');
  for (const Tool& tool : tools) {
    json.Begin('{').Add("begin", begin + "\n" + CallOpening(tool));
    json.Key("schema").Json(tool.strict ? ObjectSchema(tool) : any_object);
    json.Add("end", "}\n" + std::string(format.end)).End('}');
  }
  json.End(']').Key("triggers").Begin('[').Value(begin).End(']').End('}');
  return Grammar(GrammarSpec::Kind::kStructuralTag, std::move(text));
}

// True if the marker is text that always comes before a call's object.
bool CanBeStrict(const AnswerFormats& formats) {
  return formats.tools->syntax == ToolCallSyntax::kJson && formats.tools->bare_begin.empty() &&
         !formats.special_tools;
}

std::vector<Tool> CallableTools(const std::vector<Tool>& tools, const ToolChoice& choice) {
  std::vector<Tool> callable;
  std::ranges::copy_if(tools, std::back_inserter(callable), [&choice](const Tool& tool) {
    return !choice.allowed ||
           std::ranges::find(*choice.allowed, tool.name) != choice.allowed->end();
  });
  return callable;
}

// `tools`: those that may be called. `some`: the prompt has more.
Status PlanAuto(const std::vector<Tool>& tools, const ToolChoice& choice,
                const AnswerFormats& formats, bool some, AnswerPlan* plan) {
  if (formats.tools == nullptr) {
    return InvalidArgument(
        "tool_choice auto needs to know how the model writes calls, which its chat template does "
        "not show: start with --tool-call-parser (" +
            ToolFormatNames() + "); none, required and a named function work without it",
        "tool_choice");
  }
  plan->form.tools = formats.tools;
  plan->form.parallel = choice.parallel;
  plan->shows_special_tokens |= formats.special_tools;
  auto types = std::make_shared<ParameterTypes>();
  for (const Tool& tool : tools) {
    for (const auto& [name, type] : tool.parameter_types)
      types->emplace(std::pair(tool.name, name), type);
  }
  plan->form.parameter_types = std::move(types);
  const bool strict = std::ranges::any_of(tools, &Tool::strict);
  if (!strict && !some) return {};
  if (!CanBeStrict(formats)) {
    const std::string parser(formats.tools->name);
    return strict ? InvalidArgument(
                        "a strict function with tool_choice auto is not supported with "
                        "--tool-call-parser " +
                            parser + "; required or a named function always keeps to the schema",
                        plan->tools_name)
                  : NotAllowed(
                        "tool_choice has the mode auto and fewer tools than the request, with "
                        "--tool-call-parser " +
                            parser,
                        "the mode required", "tool_choice");
  }
  plan->grammar = StrictGrammar(tools, *formats.tools);
  return {};
}

Status PlanForced(const std::vector<Tool>& tools, const ToolChoice& choice, AnswerPlan* plan) {
  const bool named = choice.kind == ToolChoice::Kind::kNamed;
  if (tools.empty() && !named) {
    return NotAllowed(
        "tool_choice requires a call and the request has no tools of the client's own",
        "auto, none", "tool_choice");
  }
  plan->form.forced_call = true;
  plan->form.parallel = choice.parallel;
  if (!named) {
    plan->grammar = RequiredGrammar(tools, choice.parallel);
    return {};
  }
  const auto tool = std::ranges::find(tools, choice.name, &Tool::name);
  if (tool == tools.end()) {
    return NotAllowed("tool_choice names " + QuotedText(choice.name), "the client's own tools",
                      "tool_choice");
  }
  plan->form.forced_name = choice.name;
  plan->grammar = Grammar(GrammarSpec::Kind::kJsonSchema, ObjectSchema(*tool));
  return {};
}

}  // namespace

Result<AnswerPlan> PlanAnswer(const std::vector<Tool>& tools, const ToolChoice& choice,
                              const AnswerFormats& formats, const char* tools_name) {
  const std::vector<Tool> callable = CallableTools(tools, choice);
  AnswerPlan plan;
  plan.tools_name = tools_name;
  plan.form.reasoning = formats.reasoning;
  plan.shows_special_tokens = formats.special_reasoning;
  switch (choice.kind) {
    case ToolChoice::Kind::kNone:
      break;
    case ToolChoice::Kind::kAuto:
      if (callable.empty()) break;
      DS_RETURN_IF_ERROR(
          PlanAuto(callable, choice, formats, callable.size() < tools.size(), &plan));
      break;
    case ToolChoice::Kind::kRequired:
    case ToolChoice::Kind::kNamed:
      DS_RETURN_IF_ERROR(PlanForced(callable, choice, &plan));
      break;
  }
  return plan;
}

Status PlanBesideForm(const std::vector<Tool>& tools, const ToolChoice& choice,
                      const AnswerFormats& formats, AnswerPlan* plan) {
  const ToolFormat& format = *formats.tools;
  if (!format.bare_at_start_only) {
    if (CanBeStrict(formats)) plan->grammar = StrictGrammar(CallableTools(tools, choice), format);
    return {};
  }
  return NotAllowed(
      "tool_choice is auto with a given format of the answer (response_format or a similar field) "
      "and --tool-call-parser " +
          std::string(format.name) + ", whose calls are JSON without a marker",
      "none, required, a named function", "tool_choice");
}

}  // namespace diffserve
