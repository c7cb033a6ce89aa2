// SPDX-License-Identifier: Apache-2.0
// `system` and `messages` of /v1/messages.
// Thread safety: as of JsonFields.
#pragma once

#include <string>

#include "server/json/json.h"
#include "server/serving/request/conversation.h"

namespace diffserve {

// The conversation, in which system prompts stand where `roles` allows them. `answers`: an answer
// is requested, so a last message of the assistant must be one that it can continue. Errors are in
// `fields`.
Conversation ReadMessagesInput(JsonFields& fields, bool answers, const TemplateRoles& roles);

// A member that must be present and not empty; `path`: the path of `fields`.
std::string ReadMessagesName(JsonFields& fields, const char* name, const std::string& path);

}  // namespace diffserve
