// SPDX-License-Identifier: Apache-2.0
// vLLM's additions to OpenAI's API for clients that do part of the text work themselves: tokenize,
// detokenize, and a request rendered without a run.
#pragma once

#include <string>

#include "server/api/api_context.h"
#include "server/api/openai/request.h"

namespace diffserve {

HttpAnswer TokenizeText(ApiContext& api, RouteCall& call, Result<TokenizeRequest> parsed);
HttpAnswer DetokenizeIds(ApiContext& api, RouteCall& call, Result<DetokenizeRequest> parsed);
HttpAnswer RenderRequest(ApiContext& api, RouteCall& call, Result<OpenAiRequest> parsed);

// "cmpl-..." or "chatcmpl-...".
std::string OpenAiId(const RouteCall& call, bool chat);

}  // namespace diffserve
