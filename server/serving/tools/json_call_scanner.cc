// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "server/serving/tools/call_scanner.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

class JsonCallScanner : public CallScanner {
 public:
  explicit JsonCallScanner(JsonCallRules rules) : rules_(rules) {}

  Step Push(char c, CallSink& sink) override {
    if (level_ == 0) {
      if (IsJsonSpace(c)) return Step::kMore;
      if (c == '[' && rules_.list)
        level_ = 2;
      else if (c == '{' && rules_.object)
        level_ = 1;
      else
        return Step::kWrong;
    }
    const int before = json_.depth();
    if (json_.expects_value() && !IsJsonSpace(c) && !BeginValue(c, before)) return Step::kWrong;
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

  void Finish(CallSink&) override {}

 private:
  struct Call {
    std::string key;     // of the member that is read
    std::string string;  // a key, the name or arguments as text, as far as it has come
    std::string name;
    std::string early;  // arguments before the name
    bool has_arguments = false, null_arguments = false, begun = false;
  };
  bool IsArguments() const { return call_.key == "arguments" || call_.key == "parameters"; }

  // Whether a value that begins with `c` at this depth can be part of calls.
  bool BeginValue(char c, int depth) {
    if (depth < level_ - 1) return c == '[';
    if (depth == level_ - 1) return c == '{' || (level_ == 2 && c == ']');
    if (depth > level_) return true;
    if (IsArguments()) {
      if (call_.has_arguments || call_.null_arguments) return false;
      call_.null_arguments = c == 'n';
      return c == '{' || c == '"' || c == 'n';
    }
    return call_.key != "name" || (c == '"' && call_.name.empty());
  }

  // Between the braces of a call, outside of its arguments.
  bool InMember(char c, bool was_string, bool was_key, CallSink& sink) {
    const bool is_string = json_.in_string();
    if (!was_string) {
      if (is_string) call_.string.clear();
      return true;
    }
    const bool is_text = !was_key && IsArguments();
    const bool wanted = was_key || is_text || call_.key == "name";
    if (is_string) {
      if (!wanted) return true;
      call_.string += c;
      return call_.string.size() <= (is_text ? kMaxHeldCallBytes : kMaxCalledNameBytes);
    }
    if (was_key) {
      call_.key = JsonUnescaped(call_.string);
    } else if (is_text) {
      return TakeArgumentsText(sink);
    } else if (wanted) {
      call_.name = JsonUnescaped(call_.string);
      if (call_.name.empty()) return false;
      if (call_.has_arguments) return Begin(sink);
    }
    return true;
  }

  // Arguments that are the text of an object.
  bool TakeArgumentsText(CallSink& sink) {
    std::string text = JsonUnescaped(call_.string);
    if (text.empty()) text = "{}";
    if (!IsJsonObject(text)) return false;
    call_.early = text.substr(text.find('{'));
    call_.has_arguments = true;
    return call_.name.empty() || Begin(sink);
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
      if (call_.name.empty() || (rules_.needs_arguments && !call_.null_arguments)) return false;
      if (!Begin(sink)) return false;
      sink.Arguments("{}");
    }
    sink.EndCall();
    return true;
  }

  const JsonCallRules rules_;
  int level_ = 0;  // depth within a call; 0: nothing but whitespace came
  JsonScanner json_;
  Call call_;
};

}  // namespace

std::unique_ptr<CallScanner> NewJsonCallScanner(JsonCallRules rules) {
  return std::make_unique<JsonCallScanner>(rules);
}

}  // namespace diffserve
