// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "server/json/json.h"
#include "server/serving/tools/call_scanner.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=",
                           kParameterEnd = "</parameter>", kFunctionEnd = "</function>",
                           kCallEnd = "</tool_call>";

class XmlCallScanner : public CallScanner {
 public:
  explicit XmlCallScanner(std::shared_ptr<const ParameterTypes> types) : types_(std::move(types)) {}

  Step Push(char c, CallSink& sink) override {
    switch (place_) {
      case Place::kBefore:
        return InTag(c, {kFunction}, sink);
      case Place::kFunctionName:
        return c == '>' ? BeginCall(sink) : InName(c, &name_);
      case Place::kBetween:
        return InTag(c, {kParameter, kFunctionEnd, kCallEnd}, sink);
      case Place::kKey:
        if (c != '>') return InName(c, &key_);
        place_ = Place::kValue;
        return Trim(&key_) ? Step::kMore : Step::kWrong;
      case Place::kValue:
        break;
    }
    return InValue(c, sink);
  }

  void Finish(CallSink& sink) override {
    if (place_ == Place::kBefore || place_ == Place::kFunctionName) return;
    if (place_ == Place::kValue) EndParameter(sink);
    EndCall(sink);
  }

 private:
  enum class Place { kBefore, kFunctionName, kBetween, kKey, kValue };

  // Between tags, where one of these must come.
  Step InTag(char c, std::initializer_list<std::string_view> tags, CallSink& sink) {
    if (tag_.empty() && IsJsonSpace(c)) return Step::kMore;
    tag_ += c;
    for (const std::string_view tag : tags) {
      if (tag == tag_) return EndTag(tag, sink);
    }
    for (const std::string_view tag : tags) {
      if (tag.starts_with(tag_)) return Step::kMore;
    }
    return Step::kWrong;
  }

  Step EndTag(std::string_view tag, CallSink& sink) {
    tag_.clear();
    if (tag == kFunction) {
      place_ = Place::kFunctionName;
    } else if (tag == kParameter) {
      key_.clear();
      place_ = Place::kKey;
    } else {
      EndCall(sink);
      return Step::kEnd;
    }
    return Step::kMore;
  }

  static Step InName(char c, std::string* name) {
    *name += c;
    const bool may = (IsJsonSpace(c) || static_cast<unsigned char>(c) > 0x20) && c != '<' &&
                     c != '=';
    return may && name->size() <= kMaxCalledNameBytes ? Step::kMore : Step::kWrong;
  }

  // False: nothing but whitespace is left.
  static bool Trim(std::string* name) {
    constexpr const char* kSpaces = " \t\n\r";
    name->erase(name->find_last_not_of(kSpaces) + 1);
    name->erase(0, name->find_first_not_of(kSpaces));
    return !name->empty() && name->find_first_of(kSpaces) == name->npos;
  }

  Step BeginCall(CallSink& sink) {
    if (!Trim(&name_) || !sink.BeginCall(name_)) return Step::kWrong;
    sink.Arguments("{");
    place_ = Place::kBetween;
    return Step::kMore;
  }

  void EndCall(CallSink& sink) {
    sink.Arguments("}");
    sink.EndCall();
  }

  // A value ends at its tag or, where that is missing, at the next one.
  Step InValue(char c, CallSink& sink) {
    value_ += c;
    for (const std::string_view tag : {kParameterEnd, kParameter, kFunctionEnd, kCallEnd}) {
      if (!value_.ends_with(tag)) continue;
      value_.resize(value_.size() - tag.size());
      EndParameter(sink);
      place_ = Place::kBetween;
      return tag == kParameterEnd ? Step::kMore : EndTag(tag, sink);
    }
    return value_.size() <= kMaxHeldCallBytes ? Step::kMore : Step::kWrong;
  }

  // Parameters that the schema does not name are text.
  uint8_t TypesOf() const {
    if (types_ == nullptr) return ParameterType::kString;
    const auto found = types_->find(std::pair(name_, key_));
    return found == types_->end() ? ParameterType::kString : found->second;
  }

  void EndParameter(CallSink& sink) {
    std::string_view value = value_;  // its tags are on separate lines
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    const std::string before = std::exchange(first_, false) ? "" : ", ";
    sink.Arguments(before + JsonQuoted(key_) + ": " + ParameterJson(value, TypesOf()));
    value_.clear();
  }

  const std::shared_ptr<const ParameterTypes> types_;
  Place place_ = Place::kBefore;
  bool first_ = true;
  std::string tag_, name_, key_, value_;
};

}  // namespace

std::unique_ptr<CallScanner> NewXmlCallScanner(std::shared_ptr<const ParameterTypes> types) {
  return std::make_unique<XmlCallScanner>(std::move(types));
}

}  // namespace diffserve
