// SPDX-License-Identifier: Apache-2.0
// Conversation: what every API's chat request becomes, without any API's names. Each reader fills
// it, and it becomes JSON once, where the chat template takes it (TemplateJsonOf).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "server/serving/request/content_forms.h"
#include "server/serving/request/template_roles.h"
#include "server/serving/tools/tool.h"

namespace diffserve {

// A call of a tool in an assistant's message.
struct ToolCall {
  std::string id;         // may be empty
  std::string name;       // of the tool
  std::string arguments;  // the text of a JSON object
};

struct Message {
  std::string role;                  // system, developer, user, assistant or tool
  std::string content;               // several parts are joined by newlines
  std::string name = {};             // of the speaker; empty: none
  std::vector<ToolCall> calls = {};  // of an assistant
  std::string reasoning = {};        // of an assistant; empty: none
  std::string tool_call_id = {};     // of a tool's result
  std::vector<size_t> breaks = {};   // positions in `content` of the newlines that join parts

  void SetParts(const std::vector<std::string>& texts);
  size_t HeldBytes() const;
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;  // that the template shows
  // Variables for the template: the client's own, as the text of a JSON object, and those that an
  // API has members for.
  std::string template_kwargs = "{}";
  std::optional<bool> enable_thinking;
  bool own_thinking_off = false;  // template_kwargs turn thinking off
  std::string reasoning_effort;   // empty: not given
  bool add_generation_prompt = true;
  // The answer continues the last message, whose content ends with kContinuationMark.
  bool continues_final_message = false;

  // About how many bytes the template shows.
  size_t TextBytes() const;
};

inline constexpr size_t kMaxEffortBytes = 32;

// The value none turns reasoning off, unless the client has set whether the model thinks.
void SetReasoningEffort(std::string effort, bool thinking_is_set, Conversation* conversation);

// Makes the answer continue the last message.
void ContinueFinalMessage(Conversation* conversation);
// The same for a client that asks for it by name. Error: the conversation also opens an answer.
Status ContinueFinalMessageIfNotOpened(Conversation* conversation);
// The text that the answer continues; empty: it continues none.
std::string_view ContinuedText(const Conversation& conversation);

// Moves messages with roles that the template does not show into one system message at the front.
void FitRoles(const TemplateRoles& roles, std::vector<Message>* messages);

// The arguments of a call as the text of an object, because templates iterate over them. Empty text
// is {}. Text that is not an object, such as that of a call that was cut off, becomes the member
// INVALID_JSON, as in Anthropic's guide and pydantic-ai.
std::string CallArguments(const std::string& text);
// The same for a call whose argument is plain text.
std::string TextArguments(std::string_view text);

// Messages by turns, for APIs that send parts of a message as items of their own.
class TurnList {
 public:
  // Adds a message. Texts are joined by newlines.
  void Say(std::string_view role, const std::vector<std::string>& texts);
  // Adds a call of the assistant; it joins the assistant's message right before it.
  void Call(std::string_view id, std::string_view name, const std::string& arguments);
  // Adds a tool's result.
  void Answer(std::string_view call_id, std::string_view text);
  // Adds the messages of another conversation; a call does not join them.
  void Append(std::vector<Message> messages);
  std::vector<Message> Take() { return std::move(messages_); }

 private:
  std::vector<Message> messages_;
  bool in_assistant_ = false;  // the last message may get calls
};

// What ChatTemplate::Render takes.
struct TemplateJson {
  std::string messages;
  std::string tools;  // empty: none
  std::string kwargs;
};
TemplateJson TemplateJsonOf(const Conversation& conversation, const ContentForms& forms = {});

}  // namespace diffserve
