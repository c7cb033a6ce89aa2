// SPDX-License-Identifier: Apache-2.0
// Which messages a chat template shows, besides those of the user, the assistant and one system
// prompt. Other messages it refuses or silently omits. Thread safety: pure functions.
#pragma once

namespace diffserve {

class ChatTemplate;

struct TemplateRoles {
  bool developer = true;     // the role developer, which newer clients have for system prompts
  bool later_system = true;  // messages of the role system after the first message
};

// nullptr: there is no template.
TemplateRoles RolesOf(const ChatTemplate* chat_template);

}  // namespace diffserve
