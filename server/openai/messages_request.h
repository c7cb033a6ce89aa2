// The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens, parsed into what the chat
// route makes of the same conversation. No I/O, no engine.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "server/openai/request.h"

namespace diffserve {

struct MessagesChat {
  std::string body;               // of the chat route
  int max_reasoning_tokens = -1;  // -1: no limit
};
// `answers`: an answer is asked for, not the prompt's length alone.
// Thinking of earlier turns is left out of the conversation, and so are marks of what to cache,
// tools of the API's vendor and what they did. With a last message of the assistant the answer goes
// on with it. Error: kInvalidArgument that names the member.
Result<MessagesChat> ChatOfMessages(std::string_view body, const OpenAiContext& context,
                                    bool answers);

// `max_tokens` is what the answer gets at most: less where the context leaves less.
Result<OpenAiRequest> ParseMessagesRequest(std::string_view body, const OpenAiContext& context);
// The same without a limit of the answer: only its prompt is used.
Result<OpenAiRequest> ParseCountTokensRequest(std::string_view body, const OpenAiContext& context);

}  // namespace diffserve
