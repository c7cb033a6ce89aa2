// What a client's tools mean for an answer: how it is constrained and how its text is read. Every
// API that has tools reads them into Tool and ToolChoice and asks here.
//
// A named tool: the whole answer is its arguments, an object of its schema. Required: the whole
// answer is a JSON list of at least one call, [{"name": ..., "arguments": {...}}, ...], as in vLLM:
// each with the schema of the tool that it names. Both hold for any model, whatever format it was
// trained on. Auto: the model writes calls in the format of --tool-call-parser; as soon as it has
// opened one, the schemas of strict functions hold, where the format's markers are text.
// Reasoning may come before all of it, and a constraint begins after it.
// Thread safety: functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/grammar.h"
#include "kernels/base/status.h"
#include "server/answer/answer_parser.h"
#include "server/answer/tool_format.h"

namespace diffserve {

struct Tool {
  std::string name;             // [a-zA-Z0-9_-]{1,128}
  std::string description;      // may be empty
  std::string parameters_json;  // a JSON schema of an object, as the client wrote it; empty: none
  bool has_type = false;        // the schema says "type"
  bool only_objects = false;    // and it is "object"
  bool strict = false;
  std::map<std::string, uint8_t> parameter_types;  // ParameterType's bits, by name
};

struct ToolChoice {
  enum class Kind { kNone, kAuto, kRequired, kNamed };
  Kind kind = Kind::kNone;
  std::string name;      // of kNamed
  bool parallel = true;  // more than one call in an answer
};

struct AnswerPlan {
  AnswerForm form;
  std::optional<GrammarSpec> grammar;
  bool shows_special_tokens = false;  // the form's markers are some
};

inline constexpr size_t kMaxToolNameBytes = 128;  // Anthropic's; OpenAI's names are shorter
inline constexpr int kMaxRequiredCalls = 16;      // in an answer to tool_choice required

bool IsToolName(std::string_view name);
// Error: kInvalidArgument; `param` is tool_choice or tools.
Result<AnswerPlan> PlanAnswer(const std::vector<Tool>& tools, const ToolChoice& choice,
                              const AnswerFormats& formats);
// Whether an answer may be calls of this format or else keep to a form, response_format or the
// like. Error: such calls cannot be told from the form.
Status CheckBesideForm(const ToolFormat& format);
// The tools as chat templates expect them: OpenAI's list, its members in the usual order. Empty
// without tools.
std::string ToolsJson(const std::vector<Tool>& tools);

}  // namespace diffserve
