// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "server/serving/tools/call_scanner.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

class NamedJsonCallScanner : public CallScanner {
 public:
  Step Push(char c, CallSink& sink) override {
    if (json_calls_ != nullptr) return json_calls_->Push(c, sink);
    switch (place_) {
      case Place::kStart:
        if (IsJsonSpace(c)) return Step::kMore;
        if (c == '[' || c == '{') {
          json_calls_ = NewJsonCallScanner({});
          return json_calls_->Push(c, sink);
        }
        place_ = Place::kName;
        return InName(c, &name_);
      case Place::kName:
        if (c == '{') return BeginArguments(sink);
        if (c == '[') return BeginTag();
        return InName(c, &name_);
      case Place::kTag:
        return InTag(c);
      case Place::kCallId:  // the answer's calls have ids of their own
        return c == '[' ? BeginTag() : InName(c, &call_id_);
      case Place::kBeforeArguments:
        if (IsJsonSpace(c)) return Step::kMore;
        return c == '{' ? BeginArguments(sink) : Step::kWrong;
      case Place::kArguments:
        break;
    }
    return InArguments(c, sink);
  }

  void Finish(CallSink& sink) override {
    if (json_calls_ != nullptr) json_calls_->Finish(sink);
  }

 private:
  static constexpr std::string_view kCallIdTag = "[CALL_ID]", kArgumentsTag = "[ARGS]";
  enum class Place { kStart, kName, kTag, kCallId, kBeforeArguments, kArguments };

  // Whitespace may only follow a name.
  static Step InName(char c, std::string* name) {
    const bool ended = !name->empty() && IsJsonSpace(name->back());
    const bool may = IsJsonSpace(c) ||
                     (!ended && static_cast<unsigned char>(c) > 0x20 &&
                      std::string_view("\"'<>(){}[],;:").find(c) == std::string_view::npos);
    *name += c;
    return may && name->size() <= kMaxCalledNameBytes ? Step::kMore : Step::kWrong;
  }

  Step BeginTag() {
    tag_ = "[";
    place_ = Place::kTag;
    return Step::kMore;
  }

  Step InTag(char c) {
    tag_ += c;
    if (tag_ == kArgumentsTag) {
      place_ = Place::kBeforeArguments;
    } else if (tag_ == kCallIdTag && call_id_.empty()) {
      place_ = Place::kCallId;
    } else if (!kArgumentsTag.starts_with(tag_) && !kCallIdTag.starts_with(tag_)) {
      return Step::kWrong;
    }
    return Step::kMore;
  }

  Step BeginArguments(CallSink& sink) {
    while (IsJsonSpace(name_.back())) name_.pop_back();
    if (!sink.BeginCall(name_)) return Step::kWrong;
    place_ = Place::kArguments;
    return InArguments('{', sink);
  }

  Step InArguments(char c, CallSink& sink) {
    const JsonScanner::Step step = arguments_.Push(c);
    if (step == JsonScanner::Step::kWrong) return Step::kWrong;
    sink.Arguments({&c, 1});
    if (step != JsonScanner::Step::kEnd) return Step::kMore;
    sink.EndCall();
    return Step::kEnd;
  }

  std::unique_ptr<CallScanner> json_calls_;  // of the older form, once it has begun
  Place place_ = Place::kStart;
  std::string name_, tag_, call_id_;
  JsonScanner arguments_;
};

}  // namespace

std::unique_ptr<CallScanner> NewNamedJsonCallScanner() {
  return std::make_unique<NamedJsonCallScanner>();
}

}  // namespace diffserve
