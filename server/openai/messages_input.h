// `system` and `messages` of /v1/messages.
// Thread safety: as of JsonFields.
#pragma once

#include <string>

#include "server/openai/chat_body.h"
#include "server/openai/json.h"

namespace diffserve {

// Writes the conversation into `body`. `answers`: an answer is asked for, so a last message of the
// assistant must be one that it can go on with. Errors are in `fields`.
void ReadMessagesInput(JsonFields& fields, bool answers, ChatBody* body);

// A member that may be neither absent nor empty; `path`: of `fields`.
std::string ReadMessagesName(JsonFields& fields, const char* name, const std::string& path);

}  // namespace diffserve
