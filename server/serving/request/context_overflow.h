// SPDX-License-Identifier: Apache-2.0
// Errors of requests that are longer than the model's context. Client libraries recognise them by
// words in the message, and then shorten the conversation or request a shorter answer. OpenAI
// clients look for the maximum context length or "exceeds the context window". Anthropic clients
// look for "prompt is too long" or "exceed context limit", with the numbers in this order. One
// message contains all of these, on every API.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

// The error for a prompt of `tokens` tokens if at most `max_tokens` are allowed. `remark`: how they
// were counted; empty: exactly.
Status PromptTooLong(size_t tokens, int max_tokens, int context, std::string_view remark,
                     const char* param);

// The error for a prompt and its maximum output together; max_tokens has the name that the client
// used.
Status AnswerTooLong(size_t prompt_tokens, int64_t max_tokens, int context,
                     const char* max_tokens_name);

}  // namespace diffserve
