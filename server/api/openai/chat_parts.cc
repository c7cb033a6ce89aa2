// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/chat_parts.h"

#include <utility>
#include <vector>

#include "server/api/reply/answer_splitter.h"

namespace diffserve {
namespace {

void AddReasoning(const AnswerMessage& message, JsonWriter* json) {
  if (message.reasoning.empty()) return;
  for (const char* name : {"reasoning_content", "reasoning"})  // vLLM's is the second one
    json->Key(name).LongText(message.reasoning);
}

void AddCalls(const AnswerMessage& message, const ChatForm& form, int choice, bool streamed,
              JsonWriter* json) {
  if (message.calls.empty()) return;
  json->Key("tool_calls").Begin('[');
  for (const AnswerCall& call : message.calls) {
    json->Begin('{');
    if (streamed) json->Add("index", call.index);
    if (call.opens) json->Add("id", CallIdOf(form, choice, call.index)).Add("type", "function");
    json->Key("function").Begin('{');
    if (call.opens) json->Key("name").LongText(call.name);
    json->Key("arguments").LongText(call.arguments).End('}').End('}');
  }
  json->End(']');
}

}  // namespace

void AddChatMessage(const AnswerMessage& message, const ChatForm& form, int choice,
                    JsonWriter* json) {
  json->Begin('{').Add("role", "assistant").Key("content");
  if (message.content.empty() && !message.empty())
    json->Value(nullptr);
  else
    json->LongText(message.content);
  json->Add("refusal", nullptr);
  AddReasoning(message, json);
  AddCalls(message, form, choice, /*streamed=*/false, json);
  json->End('}');
}

void AddChatDelta(const AnswerMessage& message, const ChatForm& form, int choice,
                  JsonWriter* json) {
  json->Begin('{');
  AddReasoning(message, json);
  if (!message.content.empty()) json->Key("content").LongText(message.content);
  AddCalls(message, form, choice, /*streamed=*/true, json);
  json->End('}');
}

}  // namespace diffserve
