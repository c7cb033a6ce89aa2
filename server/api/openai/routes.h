// SPDX-License-Identifier: Apache-2.0
// OpenAI's routes for completions, chats, embeddings and models, and vLLM's additions to them.
#pragma once

#include "server/api/door/route.h"

namespace diffserve {

Api OpenAiApi();

}  // namespace diffserve
