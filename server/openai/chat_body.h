// ChatBody and ChatMessages: a body of /v1/chat/completions, written by the routes that say the
// same in other words (/v1/messages, /v1/responses), so that one parser reads conversations, tools
// and limits for all of them.
// Thread safety: one thread at a time.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/json.h"
#include "server/openai/request.h"

namespace diffserve {

// The messages of a conversation, as JSON text.
class ChatMessages {
 public:
  // One message of text parts; none of them: an empty message.
  void Say(std::string_view role, const std::vector<std::string>& texts);
  // The assistant calls a tool; part of its message if that comes right before. `arguments`: what
  // it gives, as the text of a JSON object.
  void Call(std::string_view id, std::string_view name, std::string_view arguments);
  // What the tool answers.
  void Answer(std::string_view call_id, std::string_view text);
  // Messages that were taken of another one.
  void Append(std::string_view messages);
  // All, separated by commas.
  std::string Take();

 private:
  void EndAssistant();
  void Begin();

  std::string messages_;
  bool in_assistant_ = false;  // its message may still get calls
  std::string content_, calls_;
};

// What the chat route is to make of such a body.
inline OpenAiContext FittingRoles(OpenAiContext context) {
  context.fits_roles = true;
  return context;
}

class ChatBody {
 public:
  // A member and its value, as JSON text.
  void Add(std::string_view name, std::string_view json);
  // A member that is called the same in both bodies, if it is there.
  void Copy(const JsonFields& fields, std::string_view name);
  // Those that sampling takes, OpenAI's and vLLM's, under the names of the chat route.
  void CopySampling(const JsonFields& fields);
  std::string Take() { return "{" + std::move(members_) + "}"; }

 private:
  std::string members_;
};

// The members that CopySampling copies.
std::vector<std::string_view> SamplingMembers();

// A function tool as the chat route has it; `parameters` and `strict` are JSON text.
std::string ChatTool(std::string_view name, std::string_view description,
                     std::string_view parameters, std::string_view strict);

// Of what is in none of the lists, refuses what the chat route would act on or refuse, unless it is
// off, and with --strict all else.
void RefuseMembersBeyond(JsonFields& fields,
                         std::initializer_list<std::vector<std::string_view>> known, bool strict);

// An integer that may not be less than `least`.
int IntAtLeast(JsonFields& fields, std::string_view name, int least, int absent);

}  // namespace diffserve
