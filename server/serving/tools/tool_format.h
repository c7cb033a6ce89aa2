// SPDX-License-Identifier: Apache-2.0
// ToolFormat: how a model family writes tool calls and reasoning, as data. A new format of one of
// the kinds below is a new row of the table in tool_format.cc.
// Thread safety: the tables are constant.
#pragma once

#include <span>
#include <string>
#include <string_view>

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
};

struct ReasoningFormat {
  std::string_view name;  // --reasoning-parser
  std::string_view begin;
  std::string_view end;
};

// The formats of one model.
struct AnswerFormats {
  const ToolFormat* tools = nullptr;           // nullptr: unknown
  const ReasoningFormat* reasoning = nullptr;  // nullptr: there is none
  // Whether their markers are special tokens of the model. An answer shows these only without
  // skip_special_tokens.
  bool special_tools = false, special_reasoning = false;
};

std::span<const ToolFormat> ToolFormats();
std::span<const ReasoningFormat> ReasoningFormats();
// "hermes, llama3_json, ..."
std::string ToolFormatNames();
std::string ReasoningFormatNames();
// Whether a prompt ends with the opening marker of reasoning, apart from whitespace. `format` may
// be null.
bool OpensReasoning(const ReasoningFormat* format, std::string_view prompt);
const ToolFormat* FindToolFormat(std::string_view name);            // nullptr: none
const ReasoningFormat* FindReasoningFormat(std::string_view name);  // nullptr: none

}  // namespace diffserve
