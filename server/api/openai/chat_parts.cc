// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/chat_parts.h"

#include <utility>
#include <vector>

#include "server/api/answer_splitter.h"

namespace diffserve {
namespace {

// `before`: the brace or comma before the member.
void AddText(std::string_view name, const std::string& text, const char** before,
             TextPieces* pieces) {
  pieces->Add(std::exchange(*before, ","));
  pieces->Add("\"" + std::string(name) + "\":");
  pieces->AddQuoted(text);
}

void AddReasoning(const AnswerMessage& message, const char** before, TextPieces* pieces) {
  if (message.reasoning.empty()) return;
  for (const char* name : {"reasoning_content", "reasoning"})  // vLLM's is the second one
    AddText(name, message.reasoning, before, pieces);
}

void AddCalls(const AnswerMessage& message, const ChatForm& form, int choice, bool streamed,
              const char** before, TextPieces* pieces) {
  if (message.calls.empty()) return;
  pieces->Add(std::exchange(*before, ","));
  pieces->Add("\"tool_calls\":");
  const char* next = "[";
  for (const AnswerCall& call : message.calls) {
    pieces->Add(std::exchange(next, ","));
    pieces->Add("{");
    if (streamed) pieces->Add("\"index\":" + std::to_string(call.index) + ",");
    if (call.opens) {
      pieces->Add("\"id\":\"" + CallIdOf(form, choice, call.index) + "\",\"type\":\"function\",");
      pieces->Add("\"function\":{\"name\":");
      pieces->AddQuoted(call.name);
      pieces->Add(",\"arguments\":");
    } else {
      pieces->Add("\"function\":{\"arguments\":");
    }
    pieces->AddQuoted(call.arguments);
    pieces->Add("}}");
  }
  pieces->Add("]");
}

}  // namespace

std::string CallIdOf(const ChatForm& form, int choice, int call) {
  const CallIdKey key{form.response_id, form.created, choice, call};
  const bool is_short = form.answer.tools != nullptr && form.answer.tools->short_ids;
  return is_short ? ShortCallId(key) : CallId(key, "call_");
}

ChatText::ChatText(const ChatForm& form, const PromptInfo& prompt)
    : include_reasoning_(form.include_reasoning) {
  if (form.answer.parses()) parser_.emplace(form.answer, prompt.opens_reasoning);
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

void AddChatMessage(const AnswerMessage& message, const ChatForm& form, int choice,
                    TextPieces* pieces) {
  const char* before = ",";
  pieces->Add("{\"role\":\"assistant\"");
  if (message.content.empty() && !message.empty())
    pieces->Add(",\"content\":null");
  else
    AddText("content", message.content, &before, pieces);
  pieces->Add(",\"refusal\":null");
  AddReasoning(message, &before, pieces);
  AddCalls(message, form, choice, /*streamed=*/false, &before, pieces);
  pieces->Add("}");
}

void AddChatDelta(const AnswerMessage& message, const ChatForm& form, int choice,
                  TextPieces* pieces) {
  if (message.empty()) return pieces->Add("{}");
  const char* before = "{";
  AddReasoning(message, &before, pieces);
  if (!message.content.empty()) AddText("content", message.content, &before, pieces);
  AddCalls(message, form, choice, /*streamed=*/true, &before, pieces);
  pieces->Add("}");
}

}  // namespace diffserve
