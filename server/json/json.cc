// SPDX-License-Identifier: Apache-2.0
#include "server/json/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/refusal.h"
#include "server/json/json_tree.h"

namespace diffserve {

using Json = nlohmann::json;

namespace {

const Json& Node(const void* node) { return *static_cast<const Json*>(node); }

const Json* Find(const void* node, std::string_view name) {
  const auto found = Node(node).find(name);
  return found == Node(node).end() || found->is_null() ? nullptr : &*found;
}

// nullopt if `value` is not an integer or is out of range.
std::optional<int64_t> IntegerIn(const Json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  const int64_t number = value.get<int64_t>();
  if (number < low || number > high) return std::nullopt;
  return number;
}

// nullopt if `value` is not a number. Values beyond float's range become infinite.
std::optional<float> FloatIn(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  using Limits = std::numeric_limits<float>;
  const double number = value.get<double>();
  if (number > Limits::max()) return Limits::infinity();
  if (number < Limits::lowest()) return -Limits::infinity();
  return static_cast<float>(number);
}

std::string FoundText(const JsonDocument& document, const Json& value) {
  if (value.is_number() || value.is_boolean()) return ShownJson(document.TextOf(value));
  return std::string("a JSON ") + value.type_name();
}

}  // namespace

std::string ShownJson(std::string_view text) {
  return text.size() <= kMaxShownJsonBytes
             ? std::string(text)
             : std::string(text.substr(0, kMaxShownJsonBytes)) + "...";
}

Result<JsonFields> JsonFields::Parse(std::string_view body, const JsonLimits& limits) {
  Result<std::shared_ptr<const JsonDocument>> document = ParseJsonDocument(body, limits);
  if (!document.ok()) return document.status();
  const void* const node = &(*document)->root;
  return JsonFields(std::move(document).value(), node, "");
}

std::string JsonFields::PathOf(std::string_view name) const { return path_ + std::string(name); }

void JsonFields::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void JsonFields::Expected(std::string_view name, const char* what) {
  Fail(NotAllowed(PathOf(name) + " is " + FoundText(*document_, *Find(node_, name)), what,
                  PathOf(name)));
}

bool JsonFields::Has(std::string_view name) const { return Find(node_, name) != nullptr; }

bool JsonFields::IsOff(std::string_view name) const {
  const Json* const value = Find(node_, name);
  if (value == nullptr) return true;
  if (value->is_boolean()) return !value->get<bool>();
  if (value->is_number()) return value->get<double>() == 0;
  if (value->is_string()) return value->get_ref<const std::string&>().empty();
  return value->is_structured() && value->empty();
}

std::vector<std::string> JsonFields::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : Node(node_).items()) names.push_back(name);
  return names;
}

bool JsonFields::IsString(std::string_view name) const {
  const Json* const value = Find(node_, name);
  return value != nullptr && value->is_string();
}

bool JsonFields::IsObject(std::string_view name) const {
  const Json* const value = Find(node_, name);
  return value != nullptr && value->is_object();
}

void JsonFields::ObjectText(std::string_view name, size_t max_bytes, std::string* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_object()) return Expected(name, "an object");
  // Inside another kept text there is no text of its own, so the order is lost.
  *out = document_->TextOf(*value);
  if (out->size() <= max_bytes) return;
  Fail(TooMany(PathOf(name), out->size(), "bytes", max_bytes));
}

void JsonFields::Bool(std::string_view name, bool* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (value->is_boolean())
    *out = value->get<bool>();
  else
    Expected(name, "true or false");
}

void JsonFields::Int(std::string_view name, int* out) {
  using Limits = std::numeric_limits<int>;
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (const auto number = IntegerIn(*value, Limits::min(), Limits::max()))
    *out = static_cast<int>(*number);
  else
    Expected(name, "an integer of 32 bits");
}

void JsonFields::Count(std::string_view name, int* out) {
  Int(name, out);
  if (Has(name) && status_.ok() && NumberText(name) == "-0")
    Expected(name, "a count, which has no negative zero");
}

void JsonFields::Float(std::string_view name, float* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (const auto number = FloatIn(*value))
    *out = *number;
  else
    Expected(name, "a number");
}

std::string JsonFields::NumberText(std::string_view name) const {
  return ShownJson(document_->TextOf(*Find(node_, name)));
}

void JsonFields::Seed(std::string_view name, uint64_t* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (value->is_number_unsigned())
    *out = value->get<uint64_t>();
  else if (value->is_number_integer())
    *out = static_cast<uint64_t>(value->get<int64_t>());
  else
    Expected(name, "an integer of 64 bits");
}

void JsonFields::String(std::string_view name, size_t max_bytes, std::string* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_string()) return Expected(name, "a string");
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    return Fail(TooMany(PathOf(name), text.size(), "bytes", max_bytes));
  }
  *out = text;
}

namespace {

// Appends the integers of `list`, each at least `least`; false if an entry is not one.
bool AppendIds(const Json& list, std::vector<int32_t>* out, int32_t least = 0) {
  out->reserve(list.size());
  for (const Json& entry : list) {
    const auto id = IntegerIn(entry, least, std::numeric_limits<int32_t>::max());
    if (!id) return false;
    out->push_back(static_cast<int32_t>(*id));
  }
  return true;
}

}  // namespace

void JsonFields::StringOrStrings(std::string_view name, size_t max_entries,
                                 std::vector<std::string>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (value->is_string()) {
    *out = {value->get<std::string>()};
    return;
  }
  if (!value->is_array()) return Expected(name, "a string or a list of strings");
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  for (const Json& entry : *value) {
    if (!entry.is_string()) return Expected(name, "a string or a list of strings");
    out->push_back(entry.get<std::string>());
  }
}

void JsonFields::Ints(std::string_view name, size_t max_entries, std::vector<int32_t>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_array()) return Expected(name, "a list of token ids");
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  if (!AppendIds(*value, out)) Expected(name, "a list of integers from 0 to 2147483647");
}

void JsonFields::SignedInts(std::string_view name, size_t max_entries, std::vector<int>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  constexpr const char* kExpected = "a list of integers of 32 bits";
  if (!value->is_array()) return Expected(name, kExpected);
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  if (!AppendIds(*value, out, std::numeric_limits<int32_t>::min())) Expected(name, kExpected);
}

void JsonFields::IntPairs(std::string_view name, size_t max_entries,
                          std::vector<std::pair<int32_t, int32_t>>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  constexpr const char* kExpected = "a list of pairs of integers from 0 to 2147483647";
  if (!value->is_array()) return Expected(name, kExpected);
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  for (const Json& entry : *value) {
    std::vector<int32_t> pair;
    if (!entry.is_array() || entry.size() != 2 || !AppendIds(entry, &pair))
      return Expected(name, kExpected);
    out->emplace_back(pair[0], pair[1]);
  }
}

void JsonFields::LogitBias(std::string_view name, size_t max_entries, const CheckWritten& check,
                           std::vector<std::pair<int32_t, float>>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  constexpr const char* kExpected = "an object of token ids to numbers";
  if (!value->is_object()) return Expected(name, kExpected);
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  for (const auto& [key, bias] : value->items()) {
    constexpr size_t kMaxDigits = 9;  // below 2^31
    if (key.empty() || key.size() > kMaxDigits ||
        key.find_first_not_of("0123456789") != std::string::npos) {
      return Fail(
          NotAllowed(PathOf(name) + " has the key " + QuotedText(key), "token ids", PathOf(name)));
    }
    const std::optional<float> number = FloatIn(bias);
    if (!number) return Expected(name, kExpected);
    Fail(check(*number, ShownJson(document_->TextOf(bias)) + " for token " + key));
    out->emplace_back(std::stoi(key), *number);
  }
}

void JsonFields::Variables(std::string_view name, size_t max_entries, size_t max_bytes,
                           std::span<const std::string_view> reserved, std::string* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_object()) return Expected(name, "an object");
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  for (const auto& [key, entry] : value->items()) {
    const std::string path = PathOf(name) + "." + ShownJson(key);
    if (std::ranges::find(reserved, key) != reserved.end())
      return Fail(InvalidArgument(path + " cannot be set by a request", path));
    if (key.size() > kMaxShownJsonBytes)
      return Fail(TooMany(path, key.size(), "bytes in its name", kMaxShownJsonBytes));
  }
  std::string text;
  ObjectText(name, max_bytes, &text);
  if (!status_.ok()) return;
  *out = "{}";
  if (std::ranges::all_of(*value, &Json::is_null)) return;
  if (std::ranges::any_of(*value, &Json::is_null)) {
    auto ordered = nlohmann::ordered_json::parse(text);
    for (const auto& [key, entry] : value->items()) {
      if (entry.is_null()) ordered.erase(key);
    }
    text = ordered.dump();
  }
  *out = std::move(text);
}

void JsonFields::Scalars(std::string_view name, size_t max_entries, std::string* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_object()) return Expected(name, "an object");
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  constexpr size_t kMaxScalarBytes = 1024;
  for (const auto& [key, entry] : value->items()) {
    const std::string path = PathOf(name) + "." + ShownJson(key);
    if (key.size() > kMaxShownJsonBytes)
      return Fail(TooMany(path, key.size(), "bytes in its name", kMaxShownJsonBytes));
    const bool short_text = entry.is_string() &&
                            entry.get_ref<const std::string&>().size() <= kMaxScalarBytes;
    if (!short_text && !entry.is_boolean() && !entry.is_number()) {
      return Fail(NotAllowed(
          path + " is " +
              (entry.is_string()
                   ? "a string of " + std::to_string(entry.get_ref<const std::string&>().size()) +
                         " bytes"
                   : FoundText(*document_, entry)),
          "a boolean, a number, a string of at most " + std::to_string(kMaxScalarBytes) + " bytes",
          path));
    }
  }
  *out = value->dump();
}

void JsonFields::Prompts(std::string_view name, size_t max_entries, std::vector<TextOrIds>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  constexpr const char* kExpected = "text, a list of texts, token ids or a list of lists of ids";
  if (value->is_string()) {
    out->emplace_back(value->get<std::string>());
    return;
  }
  if (!value->is_array()) return Expected(name, kExpected);
  if (value->empty()) return Fail(IsEmpty(PathOf(name), "at least 1 entry"));
  if (value->front().is_number()) {
    std::vector<int32_t> ids;
    if (!AppendIds(*value, &ids)) return Expected(name, kExpected);
    out->emplace_back(std::move(ids));
    return;
  }
  if (value->size() > max_entries)
    return Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
  const bool texts = value->front().is_string();
  for (const Json& entry : *value) {
    std::vector<int32_t> ids;
    if (texts && entry.is_string())
      out->emplace_back(entry.get<std::string>());
    else if (!texts && entry.is_array() && AppendIds(entry, &ids))
      out->emplace_back(std::move(ids));
    else
      return Expected(name, kExpected);
  }
}

std::string JsonFields::JsonText(std::string_view name) const {
  const Json* const value = Find(node_, name);
  if (value == nullptr) return "null";
  return document_->TextOf(*value);
}

std::vector<JsonFields> JsonFields::Object(std::string_view name) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return {};
  if (!value->is_object()) {
    Expected(name, "an object");
    return {};
  }
  std::vector<JsonFields> one;
  one.push_back(JsonFields(document_, value, PathOf(name) + "."));
  return one;
}

std::vector<JsonFields> JsonFields::Objects(std::string_view name, size_t max_entries) {
  const Json* const value = Find(node_, name);
  std::vector<JsonFields> entries;
  if (value == nullptr || !status_.ok()) return entries;
  if (!value->is_array()) {
    Expected(name, "a list of objects");
    return entries;
  }
  if (value->size() > max_entries) {
    Fail(TooMany(PathOf(name), value->size(), "entries", max_entries));
    return entries;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string path = PathOf(name) + "[" + std::to_string(i) + "]";
    if (!(*value)[i].is_object()) {
      Fail(NotAllowed(path + " is " + FoundText(*document_, (*value)[i]), "an object", path));
      return {};
    }
    entries.push_back(JsonFields(document_, &(*value)[i], path + "."));
  }
  return entries;
}

std::string JsonQuoted(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsUtf8(std::string_view text) {
  if (std::ranges::all_of(text, [](unsigned char c) { return c < 0x80; })) return true;
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

}  // namespace diffserve
