// SPDX-License-Identifier: Apache-2.0
// The body of /inference/v1/generate, vLLM's route for token ids, converted to our own types:
// {"token_ids", "sampling_params": {...}, "model", "stream", "stream_options", "cache_salt",
// "priority", "request_id"}. No I/O, no engine.
#pragma once

#include <string>
#include <string_view>

#include "server/api/fields/read_context.h"
#include "server/serving/answer_request.h"

namespace diffserve {

struct TokenRequest {
  AnswerRequest request;
  std::string request_id;  // for the reply; empty: none was given
};

// Error: as for ParseCompletionRequest. Prompt errors that only the frontend finds have the `param`
// "prompt"; TokenPromptError renames it.
Result<TokenRequest> ParseTokenRequest(std::string_view body, const ReadContext& context);
Status TokenPromptError(const Status& status);

}  // namespace diffserve
