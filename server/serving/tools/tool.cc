// SPDX-License-Identifier: Apache-2.0
#include "server/serving/tools/tool.h"

#include <algorithm>

#include "server/json/json_writer.h"

namespace diffserve {
namespace {

// The members of an object's text.
std::string_view MembersOf(std::string_view object) {
  const std::string_view members = object.substr(object.find('{') + 1,
                                                 object.rfind('}') - object.find('{') - 1);
  return members.find('"') == members.npos ? std::string_view() : members;
}

// The schema for the template: unchanged, with a missing type added.
std::string ShownSchema(const Tool& tool) {
  if (tool.has_type) return tool.parameters_json;
  std::string schema;
  JsonWriter json(&schema);
  json.Begin('{').Add("type", "object").Members(MembersOf(tool.parameters_json));
  if (tool.parameters_json.empty()) json.Key("properties").Begin('{').End('}');
  json.End('}');
  return schema;
}

}  // namespace

bool IsToolName(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= kMaxToolNameBytes && std::ranges::all_of(name, allowed);
}

// If a name occurs twice, its last member counts.
std::string ObjectSchema(const Tool& tool) {
  if (tool.only_objects) return tool.parameters_json;
  std::string schema;
  JsonWriter json(&schema);
  json.Begin('{').Members(MembersOf(tool.parameters_json)).Add("type", "object");
  if (tool.parameters_json.empty()) {
    json.Key("properties").Begin('{').End('}');
    json.Add("additionalProperties", false);
  }
  json.End('}');
  return schema;
}

std::string ToolText(const Tool& tool) {
  return JsonObjectOf([&tool](JsonWriter& json) {
    json.Add("name", tool.name);
    if (!tool.description.empty()) json.Add("description", tool.description);
    json.Key("parameters").Json(ShownSchema(tool));
  });
}

std::string ToolsJson(const std::vector<Tool>& tools) {
  std::string text;
  if (tools.empty()) return text;
  JsonWriter json(&text);
  json.Begin('[');
  for (const Tool& tool : tools) {
    json.Begin('{').Add("type", "function").Key("function").Json(ToolText(tool)).End('}');
  }
  json.End(']');
  return text;
}

}  // namespace diffserve
