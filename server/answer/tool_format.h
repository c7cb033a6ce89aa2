// ToolFormat: how a family of models writes its calls of tools and its reasoning, as data. A new
// form that fits the kinds below is a row of the table in tool_format.cc.
// Thread safety: the tables are constant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace diffserve {

// What stands between `begin` and `end` of one call.
enum class ToolCallSyntax {
  kJson,       // {"name": ..., "arguments": {...}} (or "parameters"), or a list of them
  kNamedJson,  // NAME{...}, NAME[ARGS]{...}, NAME[CALL_ID]ID[ARGS]{...}, or what kJson has
  kXml,        // <function=NAME><parameter=KEY>VALUE</parameter>...</function>
};

struct ToolFormat {
  std::string_view name;  // --tool-call-parser
  ToolCallSyntax syntax = ToolCallSyntax::kJson;
  std::string_view begin;
  std::string_view end = {};  // "" : where the JSON value ends
  // What a call of the syntax begins with where a model leaves `begin` out; "": nothing.
  std::string_view bare_begin = {};
  // `bare_begin` begins a call only where no text came before, or since the last call.
  bool bare_at_start_only = false;
  bool short_ids = false;  // the template takes ids of nine letters and digits only
};

struct ReasoningFormat {
  std::string_view name;  // --reasoning-parser
  std::string_view begin;
  std::string_view end;
};

// Those of a model.
struct AnswerFormats {
  const ToolFormat* tools = nullptr;           // nullptr: none is known
  const ReasoningFormat* reasoning = nullptr;  // nullptr: there is none
  // Which of their markers are special tokens of the model, which an answer shows only without
  // skip_special_tokens.
  bool special_tools = false, special_reasoning = false;
};

std::span<const ToolFormat> ToolFormats();
std::span<const ReasoningFormat> ReasoningFormats();
// "hermes, llama3_json, ..."
std::string ToolFormatNames();
std::string ReasoningFormatNames();
// Whether a prompt ends within reasoning: with its opening marker, whitespace aside. `format` may
// be null.
bool OpensReasoning(const ReasoningFormat* format, std::string_view prompt);
const ToolFormat* FindToolFormat(std::string_view name);            // nullptr: none
const ReasoningFormat* FindReasoningFormat(std::string_view name);  // nullptr: none

}  // namespace diffserve
