// AnswerParser: the seam between detokenizer and encoder. It turns the text of one continuation, as
// it comes, into content, reasoning and calls of tools; what could still become a marker is held
// back until it is known. What looks like a call and is none is content.
// Whitespace beside a marker belongs to it. A call begins when its name and the first byte of its
// arguments are known; from then on they are handed on as they come, so that what goes wrong behind
// that point, or is cut off there, leaves arguments that are no JSON. Where the model may open
// reasoning it does so before all else but whitespace.
// *Invariant*: however the text is cut into pieces, the parts joined by kind and call are the same.
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer/parameter_value.h"
#include "server/answer/tool_format.h"

namespace diffserve {

struct AnswerPart {
  enum class Kind {
    kContent,
    kReasoning,
    kToolCall,       // a call begins; `text` is the tool's name
    kToolArguments,  // a piece of its arguments, as JSON text
  };
  Kind kind = Kind::kContent;
  int call = 0;  // of the calls of this continuation
  std::string text;
};

struct AnswerForm {
  const ToolFormat* tools = nullptr;           // nullptr: no call is looked for
  const ReasoningFormat* reasoning = nullptr;  // nullptr: none is looked for
  bool forced_call = false;  // the whole answer is one call's arguments of `forced_name` (a named
  std::string forced_name;   // tool) or, without a name, a JSON list of calls (required)
  bool parallel = true;      // false: what follows the first call is dropped
  std::shared_ptr<const ParameterTypes> parameter_types;  // nullptr: none is known

  bool parses() const { return tools != nullptr || reasoning != nullptr || forced_call; }
};

class AnswerParser {
 public:
  static constexpr int kMaxCalls = 128;               // those beyond it are content
  static constexpr size_t kMaxHeldBytes = 256 << 10;  // of what could become a call; then it is
                                                      // none
  static constexpr size_t kMaxNameBytes = 256;        // of a tool or a parameter

  // `in_reasoning`: the prompt has opened the reasoning already. REQUIRES: the form has one then.
  explicit AnswerParser(const AnswerForm& form, bool in_reasoning = false);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;

  void Push(std::string_view text, std::vector<AnswerPart>* out);
  // `cut`: not the model has ended the text here, but a limit, a stop string or the like. What
  // could have become a call is no content then, and a call that has begun stays as it is.
  void Finish(bool cut, std::vector<AnswerPart>* out);
  // Whether the text so far ends within reasoning.
  bool in_reasoning() const;
  int num_calls() const;  // begun so far
  // Whether the last call's arguments are whole. REQUIRES: there is one.
  bool last_call_is_whole() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace diffserve
