#include "models/config_reader.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace diffserve {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFoundChars = 60;  // of a value quoted in an error

// Errors are one line: control characters become '?', long texts are cut.
std::string OneLine(std::string_view text) {
  std::string line(text.substr(0, kMaxFoundChars));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.size() > kMaxFoundChars ? line + "..." : line;
}

std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array() && value.size() > 16) return "a list of " + std::to_string(value.size());
  return OneLine(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

// Watches a parse for what the JSON grammar allows and we do not. What it refuses is not kept, so that depth costs no memory.
class ParseGuard {
 public:
  bool Keep(Json::parse_event_t event, const Json& parsed) {
    if (!problem_.empty()) return false;
    switch (event) {
      case Json::parse_event_t::object_start: keys_.emplace_back(); break;
      case Json::parse_event_t::array_start: keys_.emplace_back(); break;
      case Json::parse_event_t::object_end: keys_.pop_back(); break;
      case Json::parse_event_t::array_end: keys_.pop_back(); break;
      case Json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get_ref<const std::string&>()).second) {
          problem_ = "the key " + Shown(parsed) + " occurs twice in one object";
        }
        break;
      case Json::parse_event_t::value: break;
    }
    if (keys_.size() > static_cast<size_t>(ConfigReader::kMaxDepth)) {
      problem_ = "nested deeper than " + std::to_string(ConfigReader::kMaxDepth) + " levels";
    }
    return problem_.empty();
  }
  const std::string& problem() const { return problem_; }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::string problem_;
};

}  // namespace

struct ConfigReader::State {
  std::string file;
  std::string prefix;            // "rope_scaling." inside a nested object
  std::shared_ptr<State> outer;  // of a nested object: problems are recorded there
  Json object;
  Status problem;

  const Json* Find(std::string_view key) const {
    const auto it = object.find(std::string(key));
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
};

ConfigReader::ConfigReader(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<ConfigReader> ConfigReader::Parse(std::string_view text, std::string file) {
  auto state = std::make_shared<State>();
  state->file = std::move(file);
  ParseGuard guard;
  try {
    const auto keep = [&guard](int, Json::parse_event_t event, Json& parsed) { return guard.Keep(event, parsed); };
    state->object = Json::parse(text, keep);
  } catch (const Json::parse_error& error) {
    return InvalidArgument(state->file + ": not valid JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {  // a number out of range
    return InvalidArgument(state->file + ": not valid JSON");
  }
  if (!guard.problem().empty()) return InvalidArgument(state->file + ": " + guard.problem());
  if (!state->object.is_object()) {
    return InvalidArgument(state->file + ": is " + Shown(state->object) + ", expected one JSON object");
  }
  return ConfigReader(std::move(state));
}

Result<ConfigReader> ConfigReader::Open(const std::string& path, size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return InvalidArgument(path + ": is missing, or not a regular file");
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : -1;
  if (size < 0) return InvalidArgument(path + ": cannot be read");
  if (static_cast<uint64_t>(size) > max_bytes) {
    return InvalidArgument(path + ": has " + std::to_string(size) + " bytes, allowed " + std::to_string(max_bytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  if (!in.seekg(0) || !in.read(text.data(), size)) return InvalidArgument(path + ": cannot be read");
  return Parse(text, path);
}

bool ConfigReader::Has(std::string_view key) const { return state_->Find(key) != nullptr; }

int ConfigReader::Int(std::string_view key, std::optional<int> fallback, int min, int max) {
  const Json* value = state_->Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(key, "is missing");
    return fallback.value_or(min);
  }
  const bool small = value->is_number_integer() && (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!small || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    Refuse(key, "an integer in " + std::to_string(min) + ".." + std::to_string(max));
    return min;
  }
  return static_cast<int>(value->get<int64_t>());
}

double ConfigReader::Number(std::string_view key, std::optional<double> fallback, double min, double max) {
  const Json* value = state_->Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(key, "is missing");
    return fallback.value_or(min);
  }
  const double number = value->is_number() ? value->get<double>() : 0;
  if (!value->is_number() || !(number >= min && number <= max)) {
    Refuse(key, "a number in " + Json(min).dump() + ".." + Json(max).dump());
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
      Refuse(key, "an integer in " + std::to_string(min) + ".." + std::to_string(max) + ", or a list of those");
      return {};
    }
    numbers.push_back(item.get<int32_t>());
  }
  return numbers;
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
  nested->object = *value;
  return ConfigReader(std::move(nested));
}

std::vector<std::pair<std::string, std::string>> ConfigReader::StringMembers() {
  std::vector<std::pair<std::string, std::string>> members;
  members.reserve(state_->object.size());
  for (const auto& [key, value] : state_->object.items()) {
    if (!value.is_string()) {
      Fail(OneLine(key), "is " + Shown(value) + ", expected a string");
      return {};
    }
    members.emplace_back(key, value.get_ref<const std::string&>());
  }
  return members;
}

void ConfigReader::Fail(std::string_view key, std::string_view problem) {
  State* outermost = state_.get();
  while (outermost->outer) outermost = outermost->outer.get();
  if (!outermost->problem.ok()) return;
  outermost->problem = InvalidArgument(state_->file + ": " + state_->prefix + std::string(key) + " " + std::string(problem));
}

void ConfigReader::Refuse(std::string_view key, std::string_view expected) {
  const Json* value = state_->Find(key);
  Fail(key, (value ? "is " + Shown(*value) : std::string("is missing")) + ", expected " + std::string(expected));
}

Status ConfigReader::status() const {
  const State* outermost = state_.get();
  while (outermost->outer) outermost = outermost->outer.get();
  return outermost->problem;
}

const std::string& ConfigReader::file() const { return state_->file; }

}  // namespace diffserve
