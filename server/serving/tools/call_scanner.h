// SPDX-License-Identifier: Apache-2.0
// Scanners for the call syntaxes of tool_format.h. A scanner reads one byte at a time, never goes
// back, and reports calls to a CallSink. Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "server/serving/tools/parameter_value.h"

namespace diffserve {

inline constexpr size_t kMaxCalledNameBytes = 256;      // of a tool or a parameter
inline constexpr size_t kMaxHeldCallBytes = 256 << 10;  // of what could become a call; then it is
                                                        // none

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
  // The model has ended the text. Closing parts that the syntax allows to omit are added.
  virtual void Finish(CallSink& sink) = 0;
};

// {"name": ..., "arguments": {...}} or a list of such objects. "parameters" is accepted for
// "arguments", and an object may be given as a string that contains it; null is {}. Other members
// are skipped.
struct JsonCallRules {
  bool object = true, list = true;  // the accepted forms
  bool needs_arguments = false;     // false: a call without arguments has {}
};
std::unique_ptr<CallScanner> NewJsonCallScanner(JsonCallRules rules);
// NAME{...}, NAME[ARGS]{...}, NAME[CALL_ID]ID[ARGS]{...}, or the JSON form above.
std::unique_ptr<CallScanner> NewNamedJsonCallScanner();
// <function=NAME><parameter=KEY>VALUE</parameter>...</function>; the closing tags may be missing.
// `types` may be null.
std::unique_ptr<CallScanner> NewXmlCallScanner(std::shared_ptr<const ParameterTypes> types);

}  // namespace diffserve
