// SPDX-License-Identifier: Apache-2.0
// Tool: a function that the client offers to the model. ToolChoice: which of them an answer may or
// must call. Every API converts its own members to these.
// Thread safety: values; functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace diffserve {

struct Tool {
  std::string name;             // [a-zA-Z0-9_-]{1,128}
  std::string description;      // may be empty
  std::string parameters_json;  // a JSON schema of an object, as the client wrote it; empty: none
  bool has_type = false;        // the schema says "type"
  bool only_objects = false;    // its "type" is "object"
  bool strict = false;
  std::map<std::string, uint8_t> parameter_types;  // ParameterType's bits, by name
};

struct ToolChoice {
  enum class Kind { kNone, kAuto, kRequired, kNamed };
  Kind kind = Kind::kNone;
  std::string name;  // for kNamed
  // Names of the tools that kAuto and kRequired may call, of those in the prompt; nullopt: all.
  std::optional<std::vector<std::string>> allowed;
  bool parallel = true;  // more than one call in an answer
};

inline constexpr size_t kMaxToolNameBytes = 128;  // Anthropic's; OpenAI's names are shorter
bool IsToolName(std::string_view name);

// The tool's schema, or one made from it, that only an object satisfies.
std::string ObjectSchema(const Tool& tool);
// {"name": ..., "description": ..., "parameters": {...}}
std::string ToolText(const Tool& tool);
// The tools as chat templates expect them: OpenAI's list, its members in the usual order. Empty
// without tools.
std::string ToolsJson(const std::vector<Tool>& tools);

}  // namespace diffserve
