// SPDX-License-Identifier: Apache-2.0
// ChatText: reads the text of one choice of a chat as the request's AnswerForm says.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/response_stream.h"
#include "server/serving/answer/answer_message.h"
#include "server/serving/answer/answer_parser.h"

namespace diffserve {

struct ChatForm {
  AnswerForm answer;
  bool include_reasoning = true;
  std::string response_id;
  int64_t created = 0;  // Unix seconds
};

// The id of a choice's call.
std::string CallIdOf(const ChatForm& form, int choice, int call);

class ChatText {
 public:
  // `form` outlives it.
  ChatText(const ChatForm& form, const PromptInfo& prompt);

  // The parts of the delta, whose shown text is `text`; with the last delta also all held-back
  // text.
  AnswerMessage Read(const ResponseDelta& delta, std::string_view text);
  // OpenAI's finish reason.
  const char* FinishName(FinishReason reason) const;
  // True if it ends with calls and the last one is complete.
  bool calls_tools() const { return calls_tools_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  const bool include_reasoning_;
  std::optional<AnswerParser> parser_;  // nullopt: all text is content
  int64_t reasoning_tokens_ = 0;
  bool calls_tools_ = false;
};

}  // namespace diffserve
