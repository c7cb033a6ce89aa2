// SPDX-License-Identifier: Apache-2.0
// ToolFormat: how a model family writes tool calls and reasoning, as data. A new format of one of
// the kinds below is a new row of the table in tool_format.cc.
// Thread safety: the tables are constant.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/response_stream.h"

namespace diffserve {

// The text between `begin` and `end` of one call.
enum class ToolCallSyntax {
  kJson,       // {"name": ..., "arguments": {...}} (or "parameters"), or a list of them
  kNamedJson,  // NAME{...}, NAME[ARGS]{...}, NAME[CALL_ID]ID[ARGS]{...}, or as kJson
  kXml,        // <function=NAME><parameter=KEY>VALUE</parameter>...</function>
};

struct ToolFormat {
  std::string_view name;  // --tool-call-parser
  ToolCallSyntax syntax = ToolCallSyntax::kJson;
  std::string_view begin;
  std::string_view end = {};  // "": the call ends where its JSON value ends
  // The first text of a call if the model omits `begin`; "": no such form.
  std::string_view bare_begin = {};
  // `bare_begin` begins a call only at the start of the answer or right after a call.
  bool bare_at_start_only = false;
  bool short_ids = false;  // the template accepts only ids of nine letters and digits
  // The template shows no tools: they, the calls and the results are written into the messages.
  bool in_messages = false;
};

struct ReasoningFormat {
  // What an answer begins with if its prompt neither opens nor closes reasoning. Reasoning that has
  // no opening marker ends at the closing one as well.
  enum class Unmarked { kMayOpen, kReasoning, kReasoningUnlessOff };

  std::string_view name;  // --reasoning-parser
  std::string_view begin;
  std::string_view end;
  Unmarked unmarked = Unmarked::kMayOpen;
};

// The formats of one model.
struct AnswerFormats {
  const ToolFormat* tools = nullptr;           // nullptr: unknown
  const ReasoningFormat* reasoning = nullptr;  // nullptr: there is none
  // Whether their markers are special tokens of the model. An answer shows these only without
  // skip_special_tokens.
  bool special_tools = false, special_reasoning = false;
  // What named them: the command line, or the chat template.
  std::string_view tools_by, reasoning_by;
};

std::span<const ToolFormat> ToolFormats();
std::span<const ReasoningFormat> ReasoningFormats();
// "hermes, llama3_json, ..."
std::string ToolFormatNames();
std::string ReasoningFormatNames();

// What shows where an answer begins.
struct PromptEnd {
  std::string_view prompt;
  std::string_view continued = {};  // the assistant's text that the answer continues
  bool thinking_off = false;        // by the client
};
// The last marker counts, if only whitespace comes after it or the continued text has it. `format`
// may be null.
ReasoningStart StartOfAnswer(const ReasoningFormat* format, const PromptEnd& end);
const ToolFormat* FindToolFormat(std::string_view name);            // nullptr: none
const ReasoningFormat* FindReasoningFormat(std::string_view name);  // nullptr: none

}  // namespace diffserve
