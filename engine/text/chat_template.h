// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: renders a conversation to a prompt with a Jinja template (the Rust module `jinja`).
// It is the one that the operator gives, or the model's own: from chat_template.jinja and
// additional_chat_templates, else tokenizer_config.json, else chat_template.json. If there are
// several named templates, a
// conversation with tools uses "tool_use" if it exists; every other one uses "default". The
// template comes from the operator, never from a client. Its steps, memory, text and stack are
// limited, and it cannot access files, environment or network. Thread safety: const after Load.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "kernels/base/status.h"

namespace diffserve {

struct TokenFiles;

// Marks the end of the last message's content when the model is to continue that message, like
// transformers' continue_final_message. The space at its end is part of the mark because a template
// may trim it.
inline constexpr std::string_view kContinuationMark = "CONTINUE_FINAL_MESSAGE_TAG ";

struct TemplateInput {
  std::string_view messages_json;       // array of {"role", "content", ...}
  std::string_view kwargs_json = "{}";  // object of extra variables
  bool add_generation_prompt = false;
  std::string_view tools_json = {};      // list of tools, the variable `tools`; empty: undefined
  bool continues_final_message = false;  // the last content ends with kContinuationMark
};

struct RenderedChat {
  std::string text;
  char32_t guard = 0;  // a private-use character in `text` for Tokenizer::Encode; 0: none
};

class ChatTemplate {
 public:
  // `given`: see ReadGivenTemplate; empty: the model's own, or nullptr if it has none. Error: a
  // template does not compile, and the message names its line; a given one shows no message.
  static Result<std::unique_ptr<ChatTemplate>> Load(const std::string& model_dir,
                                                    const std::string& given = {});
  // Whether a model could be loaded with this given template.
  static Status Check(const std::string& given);
  ~ChatTemplate();

  // With a tokenizer, special tokens written inside the conversation are treated as plain text: a
  // guard character in the rendered text keeps Tokenizer::Encode from finding them. Error:
  // kInvalidArgument, for an error that the template raised (raise_exception) or an exceeded limit.
  Result<RenderedChat> Render(const TemplateInput& conversation, const Tokenizer* tokenizer) const;

  // The Jinja text of all templates; it shows the format of the model's answers.
  std::string Sources() const;

 private:
  struct Impl;
  static Result<std::unique_ptr<ChatTemplate>> LoadGiven(const std::string& given,
                                                         const TokenFiles& files);
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
