// SPDX-License-Identifier: Apache-2.0
#include "models/config_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/refusal.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFoundChars = 60;  // per value quoted in an error
constexpr size_t kMaxLineChars = 128;  // per key
constexpr size_t kMaxListItems = 16;

bool IsShort(const Json& value) {
  return !value.is_structured() &&
         !(value.is_string() && value.get_ref<const std::string&>().size() > kMaxFoundChars);
}

// A value in an error line. Long ones are cut before they are written out.
std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array() && (value.size() > kMaxListItems || !std::ranges::all_of(value, IsShort))) {
    return "a list of " + std::to_string(value.size());
  }
  const auto text = [](const Json& shown) {
    return shown.dump(-1, ' ', true, Json::error_handler_t::replace);
  };
  const bool is_long = value.is_string() && !IsShort(value);
  const std::string line = is_long
                               ? text(value.get_ref<const std::string&>().substr(0, kMaxFoundChars))
                               : text(value);
  return line.size() > kMaxFoundChars ? line.substr(0, kMaxFoundChars) + "..." : line;
}

// Builds the tree from the parser's events, and stops the parse at the first construct that the
// JSON grammar allows but we do not. (The library's own parse with a callback takes time quadratic
// in the number of objects in a list, and stopping it takes an exception.)
class ConfigTreeBuilder : public Json::json_sax_t {
 public:
  explicit ConfigTreeBuilder(Json& root) : root_(root) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value) != nullptr;
  }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Stop("holds binary data"); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    member_ = &member->second;
    return is_new || Stop("the key " + Shown(name) + " occurs twice in one object");
  }
  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    const bool number_too_large = dynamic_cast<const Json::out_of_range*>(&error) !=
                                  nullptr;  // known only at its end
    return Stop("not valid JSON" +
                (number_too_large ? "" : " at byte " + std::to_string(position)));
  }

 private:
  bool Stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  // The value's place in the tree, or nullptr if there are too many values.
  Json* Add(Json value) {
    if (++num_values_ > ConfigReader::kMaxValues) {
      Stop("has more than " + std::to_string(ConfigReader::kMaxValues) + " values");
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*member_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  bool Open(Json empty) {
    if (open_.size() == static_cast<size_t>(ConfigReader::kMaxDepth)) {
      return Stop("nested deeper than " + std::to_string(ConfigReader::kMaxDepth) + " levels");
    }
    Json* const place = Add(std::move(empty));
    if (place != nullptr) open_.push_back(place);
    return place != nullptr;
  }

  Json& root_;
  std::vector<Json*> open_;  // the unfinished objects and lists, outermost first
  Json* member_ = nullptr;   // of the innermost object; its value comes next
  int num_values_ = 0;
  std::string problem_;
};

}  // namespace

struct ConfigReader::State {
  std::string file;
  std::string prefix;  // "rope_scaling." inside a nested object
  // For a nested object: records the problems, and owns the values.
  std::shared_ptr<State> outer;
  Json owned;  // by the outermost object
  const Json* object = &owned;
  Status problem;

  const Json* Find(std::string_view key) const {
    const auto it = object->find(std::string(key));
    return it == object->end() || it->is_null() ? nullptr : &*it;
  }
};

ConfigReader::ConfigReader(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<ConfigReader> ConfigReader::Parse(std::string_view text, std::string file) {
  auto state = std::make_shared<State>();
  state->file = std::move(file);
  ConfigTreeBuilder builder(state->owned);
  if (!Json::sax_parse(text, &builder))
    return InvalidArgument(state->file + ": " + builder.problem());
  if (!state->owned.is_object()) {
    return NotAllowed(state->file + ": is " + Shown(state->owned), "one JSON object");
  }
  return ConfigReader(std::move(state));
}

Result<ConfigReader> ConfigReader::Open(const std::string& path, size_t max_bytes) {
  const Result<std::string> text = ReadJsonFile(path, max_bytes);
  if (!text.ok()) return text.status();
  return Parse(*text, path);
}

bool ConfigReader::Has(std::string_view key) const { return state_->Find(key) != nullptr; }

bool ConfigReader::IsString(std::string_view key) const {
  return Has(key) && state_->Find(key)->is_string();
}

bool ConfigReader::IsList(std::string_view key) const {
  return Has(key) && state_->Find(key)->is_array();
}

std::vector<std::string> ConfigReader::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : state_->object->items()) {
    if (!value.is_null()) keys.push_back(key);
  }
  return keys;
}

int ConfigReader::Int(std::string_view key, std::optional<int> fallback, int min, int max) {
  const Json* value = state_->Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(key, "is missing");
    return fallback.value_or(min);
  }
  const bool small = value->is_number_integer() &&
                     (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!small || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    Refuse(key, "an integer from " + RangeText(min, max));
    return min;
  }
  return static_cast<int>(value->get<int64_t>());
}

double ConfigReader::Number(std::string_view key, std::optional<double> fallback, double min,
                            double max) {
  const Json* value = state_->Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(key, "is missing");
    return fallback.value_or(min);
  }
  const double number = value->is_number() ? value->get<double>() : 0;
  if (!value->is_number() || !(number >= min && number <= max)) {
    Refuse(key, "a number from " + Json(min).dump() + " to " + Json(max).dump());
    return min;
  }
  return number;
}

bool ConfigReader::Bool(std::string_view key, std::optional<bool> fallback) {
  const Json* value = state_->Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(key, "is missing");
    return fallback.value_or(false);
  }
  if (!value->is_boolean()) Refuse(key, "true or false");
  return value->is_boolean() && value->get<bool>();
}

std::string ConfigReader::String(std::string_view key, std::optional<std::string> fallback) {
  const Json* value = state_->Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(key, "is missing");
    return fallback.value_or("");
  }
  if (!value->is_string()) Refuse(key, "a string");
  return value->is_string() ? value->get<std::string>() : "";
}

std::vector<int32_t> ConfigReader::IntOrList(std::string_view key, int min, int max) {
  const Json* value = state_->Find(key);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<int32_t> numbers;
  for (const Json& item : list) {
    const bool fits = item.is_number_integer() && item >= Json(min) && item <= Json(max);
    if (!fits) {
      Refuse(key, "an integer from " + RangeText(min, max) + ", or a list of those");
      return {};
    }
    numbers.push_back(item.get<int32_t>());
  }
  return numbers;
}

std::vector<std::optional<int>> ConfigReader::IntsOrNulls(std::string_view key, int min, int max) {
  const Json* value = state_->Find(key);
  std::vector<std::optional<int>> numbers;
  if (value == nullptr) return numbers;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) {
    const Json& item = (*value)[i];
    good = item.is_null() || (item.is_number_integer() && item >= Json(min) && item <= Json(max));
    if (good) numbers.push_back(item.is_null() ? std::nullopt : std::optional(item.get<int>()));
  }
  if (!good) {
    Refuse(key, "a list of integers from " + RangeText(min, max) + " and nulls");
  }
  return good ? numbers : std::vector<std::optional<int>>();
}

std::vector<std::string> ConfigReader::Strings(std::string_view key) {
  const Json* value = state_->Find(key);
  std::vector<std::string> strings;
  if (value == nullptr) return strings;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) {
    good = (*value)[i].is_string();
    if (good) strings.push_back((*value)[i].get<std::string>());
  }
  if (!good) Refuse(key, "a list of strings");
  return good ? strings : std::vector<std::string>();
}

std::optional<ConfigReader> ConfigReader::Object(std::string_view key) {
  const Json* value = state_->Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    Refuse(key, "an object");
    return std::nullopt;
  }
  auto nested = std::make_shared<State>();
  nested->file = state_->file;
  nested->prefix = state_->prefix + std::string(key) + ".";
  nested->outer = state_;
  nested->object = value;
  return ConfigReader(std::move(nested));
}

std::vector<std::pair<std::string, std::string>> ConfigReader::StringMembers() {
  std::vector<std::pair<std::string, std::string>> members;
  members.reserve(state_->object->size());
  for (const auto& [key, value] : state_->object->items()) {
    if (!value.is_string()) {
      Fail(key, RefusalText("is " + Shown(value), "a string"));
      return {};
    }
    members.emplace_back(key, value.get_ref<const std::string&>());
  }
  return members;
}

std::string ConfigReader::OneLine(std::string_view text) {
  std::string line(text.substr(0, kMaxLineChars));
  for (char& c : line) {
    if (c < 0x20 || c >= 0x7f) c = '?';
  }
  return text.size() > kMaxLineChars ? line + "..." : line;
}

void ConfigReader::Fail(std::string_view key, std::string_view problem) {
  State* outermost = state_.get();
  while (outermost->outer) outermost = outermost->outer.get();
  if (!outermost->problem.ok()) return;
  outermost->problem = InvalidArgument(state_->file + ": " + state_->prefix + OneLine(key) + " " +
                                       std::string(problem));
}

void ConfigReader::Refuse(std::string_view key, std::string_view allowed) {
  const Json* value = state_->Find(key);
  Fail(key, RefusalText(value ? "is " + Shown(*value) : std::string("is missing"), allowed));
}

Status ConfigReader::status() const {
  const State* outermost = state_.get();
  while (outermost->outer) outermost = outermost->outer.get();
  return outermost->problem;
}

const std::string& ConfigReader::file() const { return state_->file; }

}  // namespace diffserve
