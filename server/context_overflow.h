// The errors of a request that is longer than the model's context. Clients know them by words in
// the message and then shorten the conversation or ask for a shorter answer: those of OpenAI's API
// look for the maximum context length or for what exceeds the context window, those of Anthropic's
// for a prompt that is too long or an input length that exceeds the context limit, with the numbers
// in this order. So one text has them all, on every API.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

// A prompt of `tokens`, of which at most `max_tokens` are allowed. `remark` says how they were
// counted, empty: exactly.
Status PromptTooLong(size_t tokens, int max_tokens, int context, std::string_view remark,
                     const char* param);

// A prompt and what may follow it, under the name by which the client asked for it.
Status AnswerTooLong(size_t prompt_tokens, int64_t max_tokens, int context,
                     const char* max_tokens_name);

}  // namespace diffserve
