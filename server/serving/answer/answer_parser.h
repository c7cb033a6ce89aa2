// SPDX-License-Identifier: Apache-2.0
// AnswerParser: parses the text of one continuation, piece by piece, into content, reasoning and
// tool calls. It is between detokenizer and encoder. Text that may still become a marker is held
// back. Text that looks like a call but is not one is content.
// Whitespace next to a marker belongs to the marker. A call begins when its name and the first byte
// of its arguments are known; from then on the arguments are passed on as they arrive. If a later
// part is malformed or cut off, the arguments sent so far are not valid JSON. Reasoning can begin
// only at the start of the answer, after whitespace at most, and not after a prompt that closed it.
// *Invariant*: the parts, joined by kind and call, do not depend on how the text is cut into
// pieces.
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "server/serving/tools/parameter_value.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {

struct AnswerPart {
  enum class Kind {
    kContent,
    kReasoning,
    kToolCall,       // a call begins; `text` is the tool's name
    kToolArguments,  // a piece of its arguments, as JSON text
  };
  Kind kind = Kind::kContent;
  int call = 0;  // index of the call within this continuation
  std::string text;
};

struct AnswerForm {
  const ToolFormat* tools = nullptr;           // nullptr: calls are not parsed
  const ReasoningFormat* reasoning = nullptr;  // nullptr: reasoning is not parsed
  bool forced_call = false;  // the whole answer is one call's arguments of `forced_name` (a named
  std::string forced_name;   // tool) or, without a name, a JSON list of calls (required)
  bool parallel = true;      // false: text after the first call is dropped
  bool has_form = false;     // where reasoning may begin, whitespace before a form is not content
  std::shared_ptr<const ParameterTypes> parameter_types;  // nullptr: unknown

  bool parses() const { return tools != nullptr || reasoning != nullptr || forced_call; }
};

class AnswerParser {
 public:
  static constexpr int kMaxCalls = 128;  // further calls are content

  // `start`: how the prompt ends, if the form has reasoning.
  explicit AnswerParser(const AnswerForm& form, ReasoningStart start = ReasoningStart::kMayOpen);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;

  void Push(std::string_view text, std::vector<AnswerPart>* out);
  // Ends the text. `cut`: a limit or a stop string ended it, not the model. Then text that could
  // have become a call is dropped, and a call that has begun stays incomplete.
  void Finish(bool cut, std::vector<AnswerPart>* out);
  // Whether the text so far ends within reasoning.
  bool in_reasoning() const;
  int num_calls() const;  // begun so far
  // Whether the last call's arguments are complete. REQUIRES: there is a call.
  bool last_call_is_whole() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace diffserve
