// SPDX-License-Identifier: Apache-2.0
// What a chat template shows besides messages of the user and the assistant. Anything else it
// refuses or silently omits. Thread safety: pure functions.
#pragma once

namespace diffserve {

class ChatTemplate;

struct TemplateRoles {
  bool developer = true;     // the role developer, which newer clients have for system prompts
  bool later_system = true;  // messages of the role system after the first message
  bool system = true;        // a system prompt
  bool tools = true;         // the tools that may be called
};

// nullptr: there is no template.
TemplateRoles RolesOf(const ChatTemplate* chat_template);

}  // namespace diffserve
