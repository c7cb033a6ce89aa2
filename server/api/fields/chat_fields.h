// SPDX-License-Identifier: Apache-2.0
// Members of a body that make a conversation, shared by several routes.
// Thread safety: as JsonFields.
#pragma once

#include <string>
#include <string_view>

#include "server/json/json.h"
#include "server/serving/request/conversation.h"

namespace diffserve {

inline constexpr size_t kMaxTextBytes = size_t{1} << 30;  // texts are bounded by the body's own
                                                          // limit

// Reads `messages`, `add_generation_prompt` (with the given default), `continue_final_message` and
// `chat_template_kwargs`. Errors are in `fields`.
Conversation ReadConversation(JsonFields& fields, bool add_generation_prompt);

// An integer of at least `min`; `absent` if it is missing.
int IntAtLeast(JsonFields& fields, std::string_view name, int min, int absent);

// The error for a member, or its value, that is known and not supported.
Status Unsupported(std::string_view name, std::string_view why = {});

}  // namespace diffserve
