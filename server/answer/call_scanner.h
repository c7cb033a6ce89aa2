// The syntaxes of calls (tool_format.h), scanned a byte at a time. A scanner tells what it finds to
// a CallSink and never looks back. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/answer/answer_parser.h"
#include "server/answer/json_scanner.h"

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
};

struct JsonCallRules {
  bool list = false;             // a list of calls
  bool needs_arguments = false;  // else a call without them has {}
};
std::unique_ptr<CallScanner> NewJsonCallScanner(JsonCallRules rules);
// `text_parameters` may be null.
std::unique_ptr<CallScanner> NewXmlCallScanner(
    std::shared_ptr<const TextParameters> text_parameters);

}  // namespace diffserve
