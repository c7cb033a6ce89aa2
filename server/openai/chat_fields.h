// The members of a body that make a conversation, which several routes have.
// Thread safety: as of JsonFields.
#pragma once

#include <string>
#include <string_view>

#include "server/frontend.h"
#include "server/openai/json.h"

namespace diffserve {

inline constexpr size_t kMaxTextBytes = size_t{1} << 30;  // texts are bounded by the body's own
                                                          // limit

// `messages`, `add_generation_prompt` (if it is left out, as given here), `continue_final_message`
// and `chat_template_kwargs`. What `roles` does not have becomes part of the first message, which
// is of the role system then. Errors are in `fields`.
ChatPrompt ReadChatPrompt(JsonFields& fields, bool add_generation_prompt,
                          const TemplateRoles& roles = {});

// The refusal of a member, or of what it says, that is known and not offered.
Status Unsupported(std::string_view name, std::string_view why = {});

}  // namespace diffserve
