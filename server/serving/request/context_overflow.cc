// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/context_overflow.h"

#include <string>

namespace diffserve {
namespace {

std::string Context(int tokens) {
  // Includes OpenAI's code, because some clients see only the message.
  return "; that exceeds the context window; this model's maximum context length is " +
         std::to_string(tokens) + " tokens (context_length_exceeded)";
}

}  // namespace

Status PromptTooLong(size_t tokens, int max_tokens, int context, std::string_view remark,
                     const char* param) {
  return Status(StatusCode::kContextExceeded,
                "prompt is too long: " + std::to_string(tokens) + " tokens > " +
                    std::to_string(max_tokens) + " maximum" + std::string(remark) +
                    Context(context),
                param);
}

Status AnswerTooLong(size_t prompt_tokens, int64_t max_tokens, int context,
                     const char* max_tokens_name) {
  const std::string name = std::string("`") + max_tokens_name + "`";
  return Status(StatusCode::kContextExceeded,
                "input length and " + name +
                    " exceed context limit: " + std::to_string(prompt_tokens) + " + " +
                    std::to_string(max_tokens) + " > " + std::to_string(context) +
                    ", decrease input length or " + name + " and try again" + Context(context),
                max_tokens_name);
}

}  // namespace diffserve
