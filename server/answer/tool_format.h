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
  kJsonObject,  // {"name": ..., "arguments": {...}} (or "parameters")
  kJsonList,    // [{"name": ..., "arguments": {...}}, ...]
  kXml,         // <function=NAME><parameter=KEY>VALUE</parameter>...</function>
};

struct ToolFormat {
  std::string_view name;  // --tool-call-parser
  ToolCallSyntax syntax = ToolCallSyntax::kJsonObject;
  std::string_view begin;        // "" : the answer itself is a call if it begins with '{' or '['
  std::string_view end;          // "" : where the JSON value ends
  std::string_view prefix = {};  // without `begin`: what may stand before the first call
  // The markers are special tokens, which an answer shows only without skip_special_tokens.
  bool special_markers = false;
  bool short_ids = false;  // the template takes ids of nine letters and digits only
};

struct ReasoningFormat {
  std::string_view name;  // --reasoning-parser
  std::string_view begin;
  std::string_view end;
  bool opened_by_template = false;  // an answer begins within it
  bool special_markers = false;     // as ToolFormat's
};

std::span<const ToolFormat> ToolFormats();
std::span<const ReasoningFormat> ReasoningFormats();
// "hermes, llama3_json, ..."
std::string ToolFormatNames();
std::string ReasoningFormatNames();
const ToolFormat* FindToolFormat(std::string_view name);            // nullptr: none
const ReasoningFormat* FindReasoningFormat(std::string_view name);  // nullptr: none

}  // namespace diffserve
