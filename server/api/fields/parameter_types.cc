// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/parameter_types.h"

#include <nlohmann/json.hpp>

#include "server/serving/tools/parameter_value.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;
using Type = ParameterType;

constexpr int kMaxDepth = 16;  // of nested schemas and references

// Type names of JSON Schema, and of other languages that generators write.
uint8_t TypeNamed(std::string_view name) {
  constexpr std::pair<std::string_view, uint8_t> kPrefixes[] = {
      {"str", Type::kString},       {"text", Type::kString},  {"varchar", Type::kString},
      {"char", Type::kString},      {"enum", Type::kString},  {"int", Type::kInteger},
      {"uint", Type::kInteger},     {"long", Type::kInteger}, {"short", Type::kInteger},
      {"unsigned", Type::kInteger}, {"num", Type::kNumber},   {"float", Type::kNumber},
      {"double", Type::kNumber},    {"bool", Type::kBoolean}, {"object", Type::kObject},
      {"dict", Type::kObject},      {"arr", Type::kArray},    {"list", Type::kArray},
      {"null", Type::kNull}};
  for (const auto& [prefix, type] : kPrefixes) {
    if (name.starts_with(prefix)) return type;
  }
  return 0;
}

uint8_t TypeOfValue(const Json& value) {
  if (value.is_string()) return Type::kString;
  if (value.is_boolean()) return Type::kBoolean;
  if (value.is_number_integer()) return Type::kInteger;
  if (value.is_number()) return Type::kNumber;
  if (value.is_object()) return Type::kObject;
  return value.is_array() ? Type::kArray : Type::kNull;
}

// Reads the schema of one parameter. `root` is the one that references point into.
class SchemaTypes {
 public:
  explicit SchemaTypes(const Json& root) : root_(root) {}

  // 0: the schema gives no type.
  uint8_t Of(const Json& schema, int depth = 0) const {
    if (!schema.is_object() || depth == kMaxDepth) return 0;
    if (const auto type = schema.find("type"); type != schema.end()) {
      if (const uint8_t named = Named(*type); named != 0) return named;
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      if (const uint8_t any = Joined(schema, name, depth); any != 0) return any;
    }
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
      uint8_t types = 0;
      for (const Json& value : *values) types |= TypeOfValue(value);
      if (types != 0) return types;
    }
    if (const auto value = schema.find("const"); value != schema.end()) return TypeOfValue(*value);
    if (const uint8_t all = Joined(schema, "allOf", depth); all != 0) return all;
    if (schema.contains("$ref")) return Referred(schema["$ref"], depth);
    if (schema.contains("properties")) return Type::kObject;
    return schema.contains("items") ? Type::kArray : 0;
  }

 private:
  static uint8_t Named(const Json& type) {
    if (type.is_string()) return TypeNamed(type.get_ref<const std::string&>());
    uint8_t types = 0;
    for (const Json& each : type.is_array() ? type : Json::array())
      types |= each.is_string() ? TypeNamed(each.get_ref<const std::string&>()) : uint8_t{0};
    return types;
  }

  uint8_t Joined(const Json& schema, const char* name, int depth) const {
    const auto schemas = schema.find(name);
    if (schemas == schema.end() || !schemas->is_array()) return 0;
    uint8_t types = 0;
    for (const Json& each : *schemas) types |= Of(each, depth + 1);
    return types;
  }

  // "#/$defs/NAME" or "#/definitions/NAME", as generators write them.
  uint8_t Referred(const Json& reference, int depth) const {
    if (!reference.is_string()) return 0;
    const auto& text = reference.get_ref<const std::string&>();
    for (const std::string name : {"$defs", "definitions"}) {
      const std::string prefix = "#/" + name + '/';
      if (!text.starts_with(prefix) || !root_.contains(name)) continue;
      const auto found = root_[name].find(text.substr(prefix.size()));
      if (found != root_[name].end()) return Of(*found, depth + 1);
    }
    return 0;
  }

  const Json& root_;
};

}  // namespace

std::map<std::string, uint8_t> ParameterTypesOf(std::string_view schema) {
  std::map<std::string, uint8_t> types;
  const Json root = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("properties") || !root["properties"].is_object())
    return types;
  const SchemaTypes read(root);
  for (const auto& [name, property] : root["properties"].items()) {
    const uint8_t found = read.Of(property);
    types[name] = found == 0 ? Type::kAny : found;
  }
  return types;
}

}  // namespace diffserve
