// ChatTemplate: a conversation rendered to a prompt by the model's own Jinja template (the Rust
// module `jinja`), from chat_template.jinja and additional_chat_templates, else
// tokenizer_config.json, else chat_template.json. Of several named ones a conversation with tools
// gets "tool_use" if there is one, every other "default". The template is the operator's, never the
// client's. Its steps, memory, text and stack are limited, and it has no access to files,
// environment or network. Thread safety: const after Load.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "kernels/base/status.h"

namespace diffserve {

// The end of the last message's content where the text is to end with that content, as
// transformers' continue_final_message has it: a template may trim the space.
inline constexpr std::string_view kContinuationMark = "CONTINUE_FINAL_MESSAGE_TAG ";

struct Conversation {
  std::string_view messages_json;       // array of {"role", "content", ...}
  std::string_view kwargs_json = "{}";  // object of extra variables
  bool add_generation_prompt = false;
  std::string_view tools_json = {};      // list of tools, the variable `tools`; empty: not there
  bool continues_final_message = false;  // its content ends with kContinuationMark
};

struct RenderedChat {
  std::string text;
  char32_t guard = 0;  // a private character of the text that is for Tokenizer::Encode alone; 0:
                       // none
};

class ChatTemplate {
 public:
  // nullptr if the model has none. Error: a template that does not compile, with its line.
  static Result<std::unique_ptr<ChatTemplate>> Load(const std::string& model_dir);
  ~ChatTemplate();

  // With a tokenizer, its special tokens are text where the conversation spells them: a guard in
  // the rendered text keeps Tokenizer::Encode from finding them. Error: what the template raised
  // (raise_exception), or a limit that was met: kInvalidArgument.
  Result<RenderedChat> Render(const Conversation& conversation, const Tokenizer* tokenizer) const;

  // The Jinja text of all templates: it tells how the model's answers are formed.
  std::string Sources() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
