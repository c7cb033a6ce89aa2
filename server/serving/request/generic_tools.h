// SPDX-License-Identifier: Apache-2.0
// Tools for a model whose chat template shows none: the tools become text of the system prompt,
// earlier calls become text of the assistant in the form of ToolFormat "generic", and the results
// become messages of the user. Thread safety: pure functions.
#pragma once

#include "server/serving/request/conversation.h"

namespace diffserve {

// Leaves `conversation` without tools, calls and messages of the role tool. `shows_system`: the
// template shows a system prompt; otherwise the tools stand before the first user's text.
void WriteToolsAsText(bool shows_system, Conversation* conversation);

}  // namespace diffserve
