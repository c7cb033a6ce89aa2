// SPDX-License-Identifier: Apache-2.0
// How a client's tools constrain an answer and how the answer's text is read. Every API with tools
// converts them to Tool and ToolChoice and calls the functions here.
//
// - named tool: the whole answer is its arguments, an object of its schema.
// - required: the whole answer is a JSON list of at least one call, [{"name": ..., "arguments":
// {...}}, ...], as in vLLM. Each call keeps to the schema of its tool.
// - auto: the model writes calls in the format of --tool-call-parser. If the format's markers are
// text, the schemas of strict functions are enforced from the opening marker on, and so are the
// names of the tools if not all are allowed.
// The first two work for every model, whatever format it was trained on. Reasoning may come before
// the answer; a constraint begins after it.
// Thread safety: functions without state.
#pragma once

#include <optional>
#include <vector>

#include "engine/text/grammar.h"
#include "kernels/base/status.h"
#include "server/serving/answer/answer_parser.h"
#include "server/serving/tools/tool.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {

struct AnswerPlan {
  AnswerForm form;
  std::optional<GrammarSpec> grammar;
  const char* tools_name = "tools";   // in errors
  bool shows_special_tokens = false;  // the format's markers are special tokens
};

inline constexpr int kMaxRequiredCalls = 16;  // in an answer to tool_choice required

// Error: kInvalidArgument; `param` is tool_choice or `tools_name`, the API's name of `tools`.
Result<AnswerPlan> PlanAnswer(const std::vector<Tool>& tools, const ToolChoice& choice,
                              const AnswerFormats& formats, const char* tools_name = "tools");
// Lets an answer be either calls or text that keeps to response_format or a similar field. Where
// the format can enforce schemas, the calls of functions that are not strict are enforced too: a
// marker without a whole call would be neither. Error: calls of this format cannot be distinguished
// from that text. REQUIRES: formats.tools is not nullptr.
Status PlanBesideForm(const std::vector<Tool>& tools, const ToolChoice& choice,
                      const AnswerFormats& formats, AnswerPlan* plan);

}  // namespace diffserve
