// The body of /inference/v1/generate, vLLM's route of tokens in and tokens out, parsed into our own
// types: {"token_ids", "sampling_params": {...}, "model", "stream", "stream_options", "cache_salt",
// "priority", "request_id"}. No I/O, no engine.
#pragma once

#include <string>
#include <string_view>

#include "server/openai/request.h"

namespace diffserve {

struct TokenRequest {
  OpenAiRequest request;
  std::string request_id;  // as the client calls it in the reply; empty: it does not
};

// Error: as of ParseCompletionRequest. What only the frontend finds wrong with the prompt has the
// `param` "prompt", which TokenPromptError renames.
Result<TokenRequest> ParseTokenRequest(std::string_view body, const OpenAiContext& context);
Status TokenPromptError(const Status& status);

}  // namespace diffserve
