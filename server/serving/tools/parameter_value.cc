// SPDX-License-Identifier: Apache-2.0
#include "server/serving/tools/parameter_value.h"

#include <algorithm>
#include <optional>

#include "server/json/json.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

constexpr std::string_view kSpaces = " \t\n\r";

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return lower;
}

// An integer in Python's syntax: a sign and leading zeros are allowed.
std::optional<std::string> IntegerJson(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  const size_t first = std::min(text.find_first_not_of('0'), text.size() - 1);
  return (negative ? "-" : "") + std::string(text.substr(first));
}

// The JSON number at the start of the text.
bool IsNumber(std::string_view text) {
  return !text.empty() && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9')) && IsJson(text);
}

// Copies the Python string literal at the start of `text` to `json` as a JSON string. Returns the
// text after it; nullopt if it has no end.
std::optional<std::string_view> CopyString(std::string_view text, std::string* json) {
  const char quote = text.front();
  std::string value;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      *json += JsonQuoted(value);
      return text.substr(i + 1);
    }
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    const size_t simple = std::string_view("\\'\"nrt").find(text[i]);
    if (simple == std::string_view::npos) return std::nullopt;
    value += "\\'\"\n\r\t"[simple];
  }
  return std::nullopt;
}

// A list, tuple or dict as Python writes it, as JSON.
std::optional<std::string> PythonJson(std::string_view text) {
  std::string json;
  while (!text.empty()) {
    const char c = text.front();
    if (c == '\'' || c == '"') {
      const std::optional<std::string_view> rest = CopyString(text, &json);
      if (!rest) return std::nullopt;
      text = *rest;
      continue;
    }
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}, {"(", "["}, {")", "]"}};
    const auto* const word = std::ranges::find_if(
        kWords, [&](const auto& known) { return text.starts_with(known.first); });
    const bool known = word != std::end(kWords);
    const std::string_view written = known ? word->second : text.substr(0, 1);
    if (written == "]" || written == "}") {  // a comma may come before it
      while (!json.empty() && kSpaces.find(json.back()) != kSpaces.npos) json.pop_back();
      if (json.ends_with(',')) json.pop_back();
    }
    json += written;
    text.remove_prefix(known ? word->first.size() : 1);
  }
  if (!IsJson(json)) return std::nullopt;
  return json;
}

std::optional<std::string> ContainerJson(std::string_view text, uint8_t types) {
  const bool object = (types & ParameterType::kObject) != 0 && text.starts_with('{');
  const bool array = (types & ParameterType::kArray) != 0 &&
                     (text.starts_with('[') || text.starts_with('('));
  if (!object && !array) return std::nullopt;
  return IsJson(text) ? std::string(text) : PythonJson(text);
}

}  // namespace

std::string ParameterJson(std::string_view text, uint8_t types) {
  const std::string_view value = Trimmed(text);
  const std::string word = Lower(value);
  const bool is_null = word == "null" || word == "none";
  if (types == ParameterType::kAny) {
    const bool container = value.starts_with('{') || value.starts_with('[');
    return container && IsJson(value) ? std::string(value) : JsonQuoted(text);
  }
  if (is_null && (types & ParameterType::kNull) != 0) return "null";
  if ((types & ParameterType::kString) != 0) return JsonQuoted(text);
  if (is_null) return "null";
  if ((types & ParameterType::kBoolean) != 0 && (word == "true" || word == "false")) return word;
  if ((types & ParameterType::kInteger) != 0) {
    if (const std::optional<std::string> integer = IntegerJson(value)) return *integer;
  }
  if ((types & ParameterType::kNumber) != 0) {
    if (IsNumber(value)) return std::string(value);
    if (const std::optional<std::string> integer = IntegerJson(value)) return *integer;
  }
  return ContainerJson(value, types).value_or(JsonQuoted(text));
}

}  // namespace diffserve
