// SPDX-License-Identifier: Apache-2.0
// ChatBody and ChatMessages: write a body of /v1/chat/completions. Routes with other formats
// (/v1/messages, /v1/responses) convert their requests with them, so one parser reads
// conversations, tools and limits for all.
// Thread safety: one thread at a time.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json/json.h"
#include "server/api/openai/request.h"

namespace diffserve {

// The messages of a conversation, as JSON text.
class ChatMessages {
 public:
  // Adds a message of text parts; without parts the message is empty.
  void Say(std::string_view role, const std::vector<std::string>& texts);
  // Adds a tool call of the assistant; it joins the assistant's message right before it.
  // `arguments`: the text of a JSON object.
  void Call(std::string_view id, std::string_view name, std::string_view arguments);
  // Adds a tool's result.
  void Answer(std::string_view call_id, std::string_view text);
  // Adds the messages of another conversation.
  void Append(std::string_view messages);
  // All messages, separated by commas.
  std::string Take();

 private:
  void EndAssistant();
  void Begin();

  std::string messages_;
  bool in_assistant_ = false;  // the last message is the assistant's and may get calls
  std::string content_, calls_;
};

// The chat body.
inline OpenAiContext FittingRoles(OpenAiContext context) {
  context.fits_roles = true;
  return context;
}

class ChatBody {
 public:
  // Adds a member; `value` is JSON text.
  void Add(std::string_view name, std::string_view json);
  // Copies a member that has the same name in both bodies, if it is present.
  void Copy(const JsonFields& fields, std::string_view name);
  // Copies the sampling members, OpenAI's and vLLM's, under the chat route's names.
  void CopySampling(const JsonFields& fields);
  std::string Take() { return "{" + std::move(members_) + "}"; }

 private:
  std::string members_;
};

// The members that CopySampling copies.
std::vector<std::string_view> SamplingMembers();

// A function tool in the chat route's format; `parameters` and `strict` are JSON text.
std::string ChatTool(std::string_view name, std::string_view description,
                     std::string_view parameters, std::string_view strict);

// Refuses members that no list contains, if the chat route would act on them or refuse them, unless
// their value means off. With --strict, refuses all unknown members.
void RefuseMembersBeyond(JsonFields& fields,
                         std::initializer_list<std::vector<std::string_view>> known, bool strict);

// An integer of at least `min`; `absent` if it is missing.
int IntAtLeast(JsonFields& fields, std::string_view name, int min, int absent);

}  // namespace diffserve
