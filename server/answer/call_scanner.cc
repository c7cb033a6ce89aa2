#include "server/answer/call_scanner.h"

#include <utility>

namespace diffserve {
namespace {

constexpr size_t kMaxNameBytes = AnswerParser::kMaxNameBytes;
constexpr size_t kMaxHeldBytes = AnswerParser::kMaxHeldBytes;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// {"name": ..., "arguments": {...}}, or a list of them. Members beside these two are skipped.
class JsonCallScanner : public CallScanner {
 public:
  explicit JsonCallScanner(JsonCallRules rules) : rules_(rules), level_(rules.list ? 2 : 1) {}

  Step Push(char c, CallSink& sink) override {
    const int before = json_.depth();
    if (json_.expects_value() && !IsSpace(c) && !MayBegin(c, before)) return Step::kWrong;
    const bool was_string = json_.in_string(), was_key = json_.in_key();
    const JsonScanner::Step step = json_.Push(c);
    if (step == JsonScanner::Step::kWrong || step == JsonScanner::Step::kPast) return Step::kWrong;
    const int after = json_.depth();
    bool right = true;
    if (before == level_ - 1 && after == level_) {
      call_ = {};
    } else if (before == level_ && after == level_) {
      right = InMember(c, was_string, was_key, sink);
    } else if (IsArguments() && (before > level_ || after > level_)) {
      right = InArguments(c, before == level_, sink);
      if (after == level_) call_.key.clear();
    } else if (before == level_ && after == level_ - 1) {
      right = EndObject(sink);
    }
    if (!right) return Step::kWrong;
    return step == JsonScanner::Step::kEnd ? Step::kEnd : Step::kMore;
  }

 private:
  struct Call {
    std::string key;     // of the member that is read
    std::string string;  // a key or the name, as far as it has come
    std::string name;
    std::string early;  // arguments before the name
    bool has_arguments = false, begun = false;
  };
  bool IsArguments() const { return call_.key == "arguments" || call_.key == "parameters"; }

  // Whether a value that begins with `c` at this depth can be part of calls.
  bool MayBegin(char c, int depth) const {
    if (depth < level_ - 1) return c == '[';
    if (depth == level_ - 1) return c == '{' || (rules_.list && c == ']');
    if (depth > level_) return true;
    if (IsArguments()) return c == '{' && !call_.has_arguments;
    return call_.key != "name" || (c == '"' && call_.name.empty());
  }

  // Between the braces of a call, outside of its arguments.
  bool InMember(char c, bool was_string, bool was_key, CallSink& sink) {
    const bool is_string = json_.in_string();
    if (!was_string) {
      if (is_string) call_.string.clear();
      return true;
    }
    const bool wanted = was_key || call_.key == "name";
    if (is_string) {
      if (!wanted) return true;
      call_.string += c;
      return call_.string.size() <= kMaxNameBytes;
    }
    if (was_key) {
      call_.key = JsonUnescaped(call_.string);
    } else if (wanted) {
      call_.name = JsonUnescaped(call_.string);
      if (call_.name.empty()) return false;
      if (call_.has_arguments) return Begin(sink);
    }
    return true;
  }

  bool InArguments(char c, bool first, CallSink& sink) {
    if (first) {
      call_.has_arguments = true;
      if (!call_.name.empty() && !Begin(sink)) return false;
    }
    if (call_.begun)
      sink.Arguments({&c, 1});
    else
      call_.early += c;
    return true;
  }

  bool Begin(CallSink& sink) {
    if (!sink.BeginCall(call_.name)) return false;
    call_.begun = true;
    sink.Arguments(std::exchange(call_.early, {}));
    return true;
  }

  bool EndObject(CallSink& sink) {
    if (!call_.begun) {
      if (call_.name.empty() || rules_.needs_arguments) return false;
      if (!Begin(sink)) return false;
      sink.Arguments("{}");
    }
    sink.EndCall();
    return true;
  }

  const JsonCallRules rules_;
  const int level_;  // depth within a call
  JsonScanner json_;
  Call call_;
};

// <function=NAME><parameter=KEY>VALUE</parameter>...</function>
class XmlCallScanner : public CallScanner {
 public:
  explicit XmlCallScanner(std::shared_ptr<const TextParameters> text_parameters)
      : text_parameters_(std::move(text_parameters)) {}

  Step Push(char c, CallSink& sink) override {
    switch (place_) {
      case Place::kBefore:
        return Opening(c, {kFunction, {}}, sink);
      case Place::kFunctionName:
        if (c != '>') return InName(c, &name_);
        if (name_.empty() || !sink.BeginCall(name_)) return Step::kWrong;
        sink.Arguments("{");
        place_ = Place::kBetween;
        return Step::kMore;
      case Place::kBetween:
        return Opening(c, {kParameter, kFunctionEnd}, sink);
      case Place::kKey:
        if (c != '>') return InName(c, &key_);
        if (key_.empty()) return Step::kWrong;
        place_ = Place::kValue;
        return Step::kMore;
      case Place::kValue:
        break;
    }
    value_ += c;
    if (value_.ends_with(kParameterEnd)) {
      value_.resize(value_.size() - kParameterEnd.size());
      EndParameter(sink);
    }
    return value_.size() <= kMaxHeldBytes ? Step::kMore : Step::kWrong;
  }

 private:
  static constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=",
                                    kParameterEnd = "</parameter>", kFunctionEnd = "</function>";
  enum class Place { kBefore, kFunctionName, kBetween, kKey, kValue };
  struct Tags {
    std::string_view opens, ends;  // one of them must come
  };

  Step Opening(char c, Tags tags, CallSink& sink) {
    if (tag_.empty() && IsSpace(c)) return Step::kMore;
    tag_ += c;
    if (!tags.opens.starts_with(tag_) && !tags.ends.starts_with(tag_)) return Step::kWrong;
    if (tag_ == tags.opens) {
      place_ = place_ == Place::kBefore ? Place::kFunctionName : Place::kKey;
      tag_.clear();
      key_.clear();
    } else if (tag_ == tags.ends) {
      sink.Arguments("}");
      sink.EndCall();
      return Step::kEnd;
    }
    return Step::kMore;
  }

  static Step InName(char c, std::string* name) {
    *name += c;
    const bool may = static_cast<unsigned char>(c) > 0x20 && c != '<' && c != '=';
    return may && name->size() <= kMaxNameBytes ? Step::kMore : Step::kWrong;
  }

  void EndParameter(CallSink& sink) {
    std::string_view value = value_;  // its tags stand on lines of their own
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    std::string text = std::exchange(first_, false) ? "\"" : ", \"";
    AppendJsonEscaped(key_, &text);
    text += "\": ";
    const bool is_text = text_parameters_ != nullptr &&
                         text_parameters_->contains(std::pair(name_, key_));
    if (!is_text && IsJson(value)) {
      text += value;
    } else {
      text += '"';
      AppendJsonEscaped(value, &text);
      text += '"';
    }
    sink.Arguments(text);
    value_.clear();
    place_ = Place::kBetween;
  }

  const std::shared_ptr<const TextParameters> text_parameters_;
  Place place_ = Place::kBefore;
  bool first_ = true;
  std::string tag_, name_, key_, value_;
};

}  // namespace

std::unique_ptr<CallScanner> NewJsonCallScanner(JsonCallRules rules) {
  return std::make_unique<JsonCallScanner>(rules);
}

std::unique_ptr<CallScanner> NewXmlCallScanner(
    std::shared_ptr<const TextParameters> text_parameters) {
  return std::make_unique<XmlCallScanner>(std::move(text_parameters));
}

}  // namespace diffserve
