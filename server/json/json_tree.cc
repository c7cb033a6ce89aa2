// SPDX-License-Identifier: Apache-2.0
#include "server/json/json_tree.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"

namespace diffserve {

using Json = nlohmann::json;

namespace {

// Objects whose text is kept, except inside another such object; so the kept text is at most as
// long as the body.
constexpr std::string_view kKeptTexts[] = {"parameters", "input_schema", "schema",
                                           "input",      "arguments",    "action",
                                           "operation",  "body",         "chat_template_kwargs"};

// The body's bytes; `*read` is the number that the parser has read.
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
class JsonTreeBuilder : public nlohmann::json_sax<Json> {
 public:
  JsonTreeBuilder(const JsonLimits& limits, std::string_view body) : limits_(limits), body_(body) {}

  bool Parse() {
    const CountedBytes begin{body_.data(), &read_}, end{body_.data() + body_.size(), &read_};
    return Json::sax_parse(begin, end, this);
  }

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override {
    return PutNumber(value, value == 0 ? "-0" : "");
  }
  bool number_unsigned(number_unsigned_t value) override { return Put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& text) override {
    return PutNumber(value, text);
  }
  bool string(string_t& value) override { return Put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    slot_ = &(*open_.back())[name];
    if (!slot_->is_null()) ForgetTexts(*slot_);  // the last of repeated members counts
    keeps_next_ = kept_ == nullptr && std::ranges::find(kKeptTexts, name) != std::end(kKeptTexts);
    return true;
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;  // as the library numbers its errors
    const std::string where = ", at byte " + std::to_string(position);
    failure_ = error.id == kNumberOverflow
                   ? RefusalText(limits_.name + (" has the number " + ShownJson(token)) + where,
                                 "64-bit floating point")
                   : limits_.name + (" is not valid JSON" + where);
    return false;
  }

  JsonDocument& document() { return document_; }
  const std::string& failure() const { return failure_; }

 private:
  Json* Put(Json value) {
    keeps_next_ = false;
    if (++values_ > limits_.max_values) {
      failure_ = RefusalText(limits_.name + std::string(" has too many JSON values"),
                             "at most " + std::to_string(limits_.max_values));
      return nullptr;
    }
    if (open_.empty()) {
      document_.root = std::move(value);
      return &document_.root;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  // Forgets the texts of a value and its children, because another value may take their place.
  void ForgetTexts(const Json& value) {
    document_.texts.erase(&value);
    if (!value.is_structured()) return;  // a scalar would be its own child
    for (const Json& child : value) ForgetTexts(child);
  }
  // `text`: the original text; empty: the library's.
  bool PutNumber(Json value, std::string_view text) {
    const bool keeps = kept_ == nullptr && !open_.empty() && open_.back()->is_object() &&
                       !text.empty() && text != value.dump();
    const Json* const place = Put(std::move(value));
    if (place != nullptr && keeps) document_.texts[place] = text;
    return place != nullptr;
  }
  bool Open(Json value) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      failure_ = RefusalText(limits_.name + std::string("'s JSON is nested too deep"),
                             "at most " + std::to_string(limits_.max_depth) + " levels");
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
      document_.texts[kept_] = body_.substr(kept_from_, read_ - kept_from_);
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
  JsonDocument document_;
  std::vector<Json*> open_;  // a child is closed before its parent grows, so the pointers hold
  Json* slot_ = nullptr;     // where the value of the last key goes
  size_t values_ = 0;
  std::string failure_;
};

void AppendText(const JsonDocument& document, const Json& value, std::string* out) {
  if (const auto kept = document.texts.find(&value); kept != document.texts.end()) {
    *out += kept->second;
  } else if (!value.is_structured() || value.empty()) {
    *out += value.dump();
  } else if (value.is_object()) {
    char before = '{';
    for (const auto& [name, member] : value.items()) {
      *out += std::exchange(before, ',') + Json(name).dump() + ':';
      AppendText(document, member, out);
    }
    *out += '}';
  } else {
    char before = '[';
    for (const Json& entry : value) {
      *out += std::exchange(before, ',');
      AppendText(document, entry, out);
    }
    *out += ']';
  }
}

}  // namespace

std::string JsonDocument::TextOf(const Json& value) const {
  std::string text;
  AppendText(*this, value, &text);
  return text;
}

Result<std::shared_ptr<const JsonDocument>> ParseJsonDocument(std::string_view body,
                                                              const JsonLimits& limits) {
  JsonTreeBuilder builder(limits, body);
  if (!builder.Parse()) {
    return InvalidArgument(builder.failure().empty()
                               ? std::string(limits.name) + " is not valid JSON"
                               : builder.failure());
  }
  auto document = std::make_shared<JsonDocument>(std::move(builder.document()));
  if (!document->root.is_object()) {
    return NotAllowed(limits.name + std::string(" is a JSON ") + document->root.type_name(),
                      "an object");
  }
  return std::shared_ptr<const JsonDocument>(std::move(document));
}

}  // namespace diffserve
