#include "server/openai/json.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

namespace diffserve {

using Json = nlohmann::json;

struct JsonDocument {
  Json root;
  // Objects as they were written. An object's member stays where it is when the tree is moved.
  std::unordered_map<const Json*, std::string> texts;
};

namespace {

constexpr size_t kMaxShownBytes = 64;  // of a client's own words in an error message

// Objects whose text is kept, but not inside another such: no more in all than the body has.
constexpr std::string_view kKeptTexts[] = {"parameters", "input_schema", "schema",   "input",
                                           "arguments",  "action",       "operation"};

// The body's bytes, of which `*read` tells how many the parser has taken.
struct CountedBytes {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  reference operator*() const { return *at; }
  CountedBytes& operator++() {
    ++at;
    ++*read;
    return *this;
  }
  CountedBytes operator++(int) {
    const CountedBytes before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountedBytes& other) const { return at == other.at; }

  const char* at = nullptr;
  size_t* read = nullptr;
};

// Builds the tree from the parser's events; stops it at the first limit.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(const JsonLimits& limits, std::string_view body) : limits_(limits), body_(body) {}

  bool Parse() {
    const CountedBytes begin{body_.data(), &read_}, end{body_.data() + body_.size(), &read_};
    return Json::sax_parse(begin, end, this);
  }

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Put(value) != nullptr;
  }
  bool string(string_t& value) override { return Put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    slot_ = &(*open_.back())[name];
    keeps_next_ = kept_ == nullptr && std::ranges::find(kKeptTexts, name) != std::end(kKeptTexts);
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    failure_ = "the body is not valid JSON, at byte " + std::to_string(position);
    return false;
  }

  Json& root() { return root_; }
  std::unordered_map<const Json*, std::string>& texts() { return texts_; }
  const std::string& failure() const { return failure_; }

 private:
  Json* Put(Json value) {
    keeps_next_ = false;
    if (++values_ > limits_.max_values) {
      failure_ = "the body has more than " + std::to_string(limits_.max_values) + " JSON values";
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool Open(Json value) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      failure_ = "the body's JSON is nested more than " + std::to_string(limits_.max_depth) +
                 " deep";
      return false;
    }
    const bool keeps = keeps_next_ && value.is_object();
    Json* const place = Put(std::move(value));
    if (place == nullptr) return false;
    open_.push_back(place);
    if (!keeps) return true;
    kept_ = place;
    kept_from_ = read_ - 1;
    return true;
  }
  bool Close() {
    if (open_.back() == kept_) {
      texts_[kept_] = body_.substr(kept_from_, read_ - kept_from_);
      kept_ = nullptr;
    }
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  const std::string_view body_;
  size_t read_ = 0;  // of body_
  bool keeps_next_ = false;
  const Json* kept_ = nullptr;  // the open object whose text is kept
  size_t kept_from_ = 0;
  std::unordered_map<const Json*, std::string> texts_;
  Json root_;
  std::vector<Json*> open_;  // a child is closed before its parent grows, so the pointers hold
  Json* slot_ = nullptr;     // where the value of the last key goes
  size_t values_ = 0;
  std::string failure_;
};

const Json& Node(const void* node) { return *static_cast<const Json*>(node); }

const Json* Find(const void* node, std::string_view name) {
  const auto found = Node(node).find(name);
  return found == Node(node).end() || found->is_null() ? nullptr : &*found;
}

std::string Shown(std::string_view text) {
  return text.size() <= kMaxShownBytes ? std::string(text)
                                       : std::string(text.substr(0, kMaxShownBytes)) + "...";
}

// nullopt if `value` is no integer or lies outside.
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

// nullopt if `value` is no number; beyond what a float holds it is infinite.
std::optional<float> FloatIn(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  using Limits = std::numeric_limits<float>;
  const double number = value.get<double>();
  if (number > Limits::max()) return Limits::infinity();
  if (number < Limits::lowest()) return -Limits::infinity();
  return static_cast<float>(number);
}

std::string FoundText(const Json& value) {
  if (value.is_number() || value.is_boolean()) return value.dump();
  return std::string("a JSON ") + value.type_name();
}

}  // namespace

Result<JsonFields> JsonFields::Parse(std::string_view body, const JsonLimits& limits) {
  TreeBuilder builder(limits, body);
  if (!builder.Parse()) {
    return InvalidArgument(builder.failure().empty() ? "the body is not valid JSON"
                                                     : builder.failure());
  }
  auto document = std::make_shared<JsonDocument>();
  document->root = std::move(builder.root());
  document->texts = std::move(builder.texts());
  if (!document->root.is_object()) {
    return InvalidArgument(std::string("the body is a JSON ") + document->root.type_name() +
                           "; an object is expected");
  }
  const void* const node = &document->root;
  return JsonFields(std::move(document), node, "");
}

std::string JsonFields::PathOf(std::string_view name) const { return path_ + std::string(name); }

void JsonFields::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void JsonFields::Expected(std::string_view name, const char* what) {
  Fail(InvalidArgument(
      PathOf(name) + " is " + FoundText(*Find(node_, name)) + "; expected is " + what,
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
  // Inside another kept text its own is not at hand, and the order is lost.
  const auto text = document_->texts.find(value);
  *out = text != document_->texts.end() ? text->second : value->dump();
  if (out->size() <= max_bytes) return;
  Fail(InvalidArgument(PathOf(name) + " has " + std::to_string(out->size()) + " bytes; at most " +
                           std::to_string(max_bytes) + " are allowed",
                       PathOf(name)));
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

void JsonFields::Float(std::string_view name, float* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (const auto number = FloatIn(*value))
    *out = *number;
  else
    Expected(name, "a number");
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
    return Fail(InvalidArgument(PathOf(name) + " has " + std::to_string(text.size()) +
                                    " bytes; at most " + std::to_string(max_bytes) + " are allowed",
                                PathOf(name)));
  }
  *out = text;
}

namespace {

Status TooMany(const std::string& path, size_t found, size_t allowed) {
  return InvalidArgument(path + " has " + std::to_string(found) + " entries; at most " +
                             std::to_string(allowed) + " are allowed",
                         path);
}

// Appends the integers of `list`, from `least` on; false if an entry is none.
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
  if (value->size() > max_entries) return Fail(TooMany(PathOf(name), value->size(), max_entries));
  for (const Json& entry : *value) {
    if (!entry.is_string()) return Expected(name, "a string or a list of strings");
    out->push_back(entry.get<std::string>());
  }
}

void JsonFields::Ints(std::string_view name, size_t max_entries, std::vector<int32_t>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_array()) return Expected(name, "a list of token ids");
  if (value->size() > max_entries) return Fail(TooMany(PathOf(name), value->size(), max_entries));
  if (!AppendIds(*value, out)) Expected(name, "a list of integers from 0 to 2147483647");
}

void JsonFields::SignedInts(std::string_view name, size_t max_entries, std::vector<int>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  constexpr const char* kExpected = "a list of integers of 32 bits";
  if (!value->is_array()) return Expected(name, kExpected);
  if (value->size() > max_entries) return Fail(TooMany(PathOf(name), value->size(), max_entries));
  if (!AppendIds(*value, out, std::numeric_limits<int32_t>::min())) Expected(name, kExpected);
}

void JsonFields::IntPairs(std::string_view name, size_t max_entries,
                          std::vector<std::pair<int32_t, int32_t>>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  constexpr const char* kExpected = "a list of pairs of integers from 0 to 2147483647";
  if (!value->is_array()) return Expected(name, kExpected);
  if (value->size() > max_entries) return Fail(TooMany(PathOf(name), value->size(), max_entries));
  for (const Json& entry : *value) {
    std::vector<int32_t> pair;
    if (!entry.is_array() || entry.size() != 2 || !AppendIds(entry, &pair))
      return Expected(name, kExpected);
    out->emplace_back(pair[0], pair[1]);
  }
}

void JsonFields::LogitBias(std::string_view name, size_t max_entries,
                           std::vector<std::pair<int32_t, float>>* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  constexpr const char* kExpected = "an object of token ids to numbers";
  if (!value->is_object()) return Expected(name, kExpected);
  if (value->size() > max_entries) return Fail(TooMany(PathOf(name), value->size(), max_entries));
  for (const auto& [key, bias] : value->items()) {
    constexpr size_t kMaxDigits = 9;  // below 2^31
    if (key.empty() || key.size() > kMaxDigits ||
        key.find_first_not_of("0123456789") != std::string::npos) {
      return Fail(
          InvalidArgument(PathOf(name) + ": '" + Shown(key) + "' is no token id", PathOf(name)));
    }
    const std::optional<float> number = FloatIn(bias);
    if (!number) return Expected(name, kExpected);
    out->emplace_back(std::stoi(key), *number);
  }
}

void JsonFields::Scalars(std::string_view name, size_t max_entries,
                         std::span<const std::string_view> reserved, std::string* out) {
  const Json* const value = Find(node_, name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_object()) return Expected(name, "an object");
  if (value->size() > max_entries) return Fail(TooMany(PathOf(name), value->size(), max_entries));
  constexpr size_t kMaxScalarBytes = 1024;
  for (const auto& [key, entry] : value->items()) {
    const std::string path = PathOf(name) + "." + Shown(key);
    for (const std::string_view taken : reserved) {
      if (key == taken) return Fail(InvalidArgument(path + " cannot be set by a request", path));
    }
    if (key.size() > kMaxShownBytes)
      return Fail(InvalidArgument(path + " is too long a name", path));
    const bool short_text = entry.is_string() &&
                            entry.get_ref<const std::string&>().size() <= kMaxScalarBytes;
    if (!short_text && !entry.is_boolean() && !entry.is_number()) {
      return Fail(InvalidArgument(
          path + " must be a boolean, a number or a string of at most 1024 bytes", path));
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
  if (value->empty())
    return Fail(InvalidArgument(PathOf(name) + " is an empty list", PathOf(name)));
  if (value->front().is_number()) {
    std::vector<int32_t> ids;
    if (!AppendIds(*value, &ids)) return Expected(name, kExpected);
    out->emplace_back(std::move(ids));
    return;
  }
  if (value->size() > max_entries) return Fail(TooMany(PathOf(name), value->size(), max_entries));
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
  const auto text = document_->texts.find(value);
  return text != document_->texts.end() ? text->second : value->dump();
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
    Fail(TooMany(PathOf(name), value->size(), max_entries));
    return entries;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string path = PathOf(name) + "[" + std::to_string(i) + "]";
    if (!(*value)[i].is_object()) {
      Fail(InvalidArgument(path + " is " + FoundText((*value)[i]) + "; expected is an object",
                           path));
      return {};
    }
    entries.push_back(JsonFields(document_, &(*value)[i], path + "."));
  }
  return entries;
}

std::string JsonQuoted(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace diffserve
