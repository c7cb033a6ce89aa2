// The syntaxes of calls (tool_format.h), scanned a byte at a time. A scanner tells what it finds to
// a CallSink and never looks back. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string_view>

#include "server/answer/parameter_value.h"

namespace diffserve {

class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual bool BeginCall(std::string_view name) = 0;  // false: there are too many
  virtual void Arguments(std::string_view text) = 0;
  virtual void EndCall() = 0;
};

class CallScanner {
 public:
  virtual ~CallScanner() = default;
  enum class Step {
    kMore,
    kEnd,    // the last call ends with this byte
    kWrong,  // this byte does not belong to a call
  };
  virtual Step Push(char c, CallSink& sink) = 0;
  // The model has ended the text here: what the syntax lets it leave out is made up for.
  virtual void Finish(CallSink& sink) = 0;
};

// {"name": ..., "arguments": {...}} or a list of them. "parameters" may stand for "arguments", and
// the text of an object for the object; null is {}. Other members are skipped.
struct JsonCallRules {
  bool object = true, list = true;  // which of the two may come
  bool needs_arguments = false;     // else a call without them has {}
};
std::unique_ptr<CallScanner> NewJsonCallScanner(JsonCallRules rules);
// NAME{...}, NAME[ARGS]{...}, NAME[CALL_ID]ID[ARGS]{...}, or what the scanner above takes.
std::unique_ptr<CallScanner> NewNamedJsonCallScanner();
// <function=NAME><parameter=KEY>VALUE</parameter>...</function>; the closing tags may be missing.
// `types` may be null.
std::unique_ptr<CallScanner> NewXmlCallScanner(std::shared_ptr<const ParameterTypes> types);

}  // namespace diffserve
