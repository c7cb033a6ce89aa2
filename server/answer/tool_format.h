// ToolFormat: how a family of models writes its calls of tools and its reasoning, as data. A new
// form that fits the kinds below is a row of the table in tool_format.cc.
#pragma once

#include <optional>
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
  std::string_view name;   // --tool-call-parser
  ToolCallSyntax syntax = ToolCallSyntax::kJsonObject;
  std::string_view begin;  // "" : the answer itself is a call if it begins with '{' or '['
  std::string_view end;    // "" : where the JSON value ends
};

struct ReasoningFormat {
  std::string_view name;  // --reasoning-parser
  std::string_view begin;
  std::string_view end;
  bool opened_by_template = false;  // an answer begins within it
};

std::span<const ToolFormat> ToolFormats();
std::span<const ReasoningFormat> ReasoningFormats();
const ToolFormat* FindToolFormat(std::string_view name);            // nullptr: none
const ReasoningFormat* FindReasoningFormat(std::string_view name);  // nullptr: none

}  // namespace diffserve
