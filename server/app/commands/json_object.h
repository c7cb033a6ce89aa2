// SPDX-License-Identifier: Apache-2.0
// JsonObject: one JSON object for a command's --json output, written member by member.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json/json.h"

namespace diffserve {

class JsonObject {
 public:
  JsonObject& Add(std::string_view name, std::string_view value) {
    return AddRaw(name, JsonQuoted(value));
  }
  JsonObject& Add(std::string_view name, const std::string& value) {
    return AddRaw(name, JsonQuoted(value));
  }
  JsonObject& Add(std::string_view name, const char* value) {
    return AddRaw(name, JsonQuoted(value));
  }
  JsonObject& Add(std::string_view name, bool value) {
    return AddRaw(name, value ? "true" : "false");
  }
  template <std::integral T>
  JsonObject& Add(std::string_view name, T value) {
    return AddRaw(name, std::to_string(value));
  }
  JsonObject& Add(std::string_view name, double value) { return AddRaw(name, Text(value)); }
  JsonObject& Add(std::string_view name, const JsonObject& value) {
    return AddRaw(name, value.text());
  }
  template <typename T>
  JsonObject& Add(std::string_view name, const std::vector<T>& values) {
    std::string list;
    for (const T& value : values) {
      list += list.empty() ? '[' : ',';
      list += Text(value);
    }
    return AddRaw(name, list.empty() ? "[]" : list += ']');
  }

  // A value that is JSON already.
  JsonObject& AddRaw(std::string_view name, std::string_view value) {
    if (!members_.empty()) members_ += ',';
    members_ += JsonQuoted(name) + ":" + std::string(value);
    return *this;
  }

  std::string text() const { return "{" + members_ + "}"; }

 private:
  static std::string Text(const std::string& value) { return JsonQuoted(value); }
  static std::string Text(int32_t value) { return std::to_string(value); }
  static std::string Text(const JsonObject& value) { return value.text(); }
  static std::string Text(double value) {
    if (!std::isfinite(value)) return "null";
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", value);
    return text;
  }

  std::string members_;
};

}  // namespace diffserve
