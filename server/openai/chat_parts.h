// The chat's part of OpenAiResponse: the text of a choice read as the request's AnswerForm says,
// and what was read as members of a message or of a streamed delta.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/response_stream.h"
#include "server/answer/answer_message.h"
#include "server/answer/answer_parser.h"
#include "server/openai/text_pieces.h"

namespace diffserve {

struct ChatForm {
  AnswerForm answer;
  bool include_reasoning = true;
  std::string response_id;
  int64_t created = 0;  // Unix seconds
};

// The id of one of the calls of a choice.
std::string CallIdOf(const ChatForm& form, int choice, int call);

class ChatText {
 public:
  // `form` outlives it.
  ChatText(const ChatForm& form, const PromptInfo& prompt);

  // What the delta, of which `text` is shown, brings; with the last one, all that was held back.
  AnswerMessage Read(const ResponseDelta& delta, std::string_view text);
  // OpenAI's name for how it ended.
  const char* FinishName(FinishReason reason) const;
  // It ends with calls, the last of which is not cut.
  bool calls_tools() const { return calls_tools_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  const bool include_reasoning_;
  std::optional<AnswerParser> parser_;  // none: all text is content
  int64_t reasoning_tokens_ = 0;
  bool calls_tools_ = false;
};

// These write to `pieces`; the message must live until they are written.
// {"role":"assistant","content":...}
void AddChatMessage(const AnswerMessage& message, const ChatForm& form, int choice,
                    TextPieces* pieces);
// {"content":...}, empty if there is nothing.
void AddChatDelta(const AnswerMessage& message, const ChatForm& form, int choice,
                  TextPieces* pieces);

}  // namespace diffserve
