// SPDX-License-Identifier: Apache-2.0
// The parts of a choice of a chat as members of a message or of a streamed delta.
// Thread safety: pure functions.
#pragma once

#include "server/api/reply/chat_text.h"
#include "server/json/json_writer.h"

namespace diffserve {

// REQUIRES: `json` is made over TextPieces. The message must live until they are written.
// {"role":"assistant","content":...}
void AddChatMessage(const AnswerMessage& message, const ChatForm& form, int choice,
                    JsonWriter* json);
// {"content":...}, empty if there is nothing.
void AddChatDelta(const AnswerMessage& message, const ChatForm& form, int choice, JsonWriter* json);

}  // namespace diffserve
