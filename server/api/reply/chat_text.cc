// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/chat_text.h"

#include <utility>
#include <vector>

#include "server/api/reply/answer_splitter.h"

namespace diffserve {

std::string CallIdOf(const ChatForm& form, int choice, int call) {
  const CallIdKey key{form.response_id, form.created, choice, call};
  const bool is_short = form.answer.tools != nullptr && form.answer.tools->short_ids;
  return is_short ? ShortCallId(key) : CallId(key, "call_");
}

ChatText::ChatText(const ChatForm& form, const PromptInfo& prompt)
    : include_reasoning_(form.include_reasoning) {
  if (form.answer.parses()) parser_.emplace(form.answer, prompt.reasoning);
}

AnswerMessage ChatText::Read(const ResponseDelta& delta, std::string_view text) {
  AnswerMessage message;
  if (!parser_) {
    message.content = text;
    return message;
  }
  std::vector<AnswerPart> parts;
  const bool reasoned = parser_->in_reasoning();
  parser_->Push(text, &parts);
  // A marker's own tokens count as reasoning.
  if (reasoned || parser_->in_reasoning())
    reasoning_tokens_ += static_cast<int64_t>(delta.tokens.size());
  if (delta.finish != FinishReason::kNone) {
    const bool cut = IsCut(delta);
    parser_->Finish(cut, &parts);
    calls_tools_ = parser_->num_calls() > 0 && (!cut || parser_->last_call_is_whole());
  }
  message.Add(std::move(parts));
  if (!include_reasoning_) message.reasoning.clear();
  return message;
}

const char* ChatText::FinishName(FinishReason reason) const {
  return calls_tools_ && reason == FinishReason::kStop ? "tool_calls" : OpenAiNameOf(reason);
}

}  // namespace diffserve
