// The body of POST /v1/embeddings, parsed. No I/O, no engine.
#pragma once

#include <optional>
#include <string_view>

#include "models/diagnostics/hidden_state_pool.h"
#include "server/openai/request.h"

namespace diffserve {

struct EmbeddingRequest {
  GenerateRequest generate;  // one prompt for each input, of which nothing is generated
  HiddenStatePool::Kind pooling = HiddenStatePool::Kind::kMean;
  std::optional<int> dimensions;  // nullopt: all of the hidden state
  bool base64 = false;            // of little-endian float32, else JSON numbers
};

// Errors as of the other bodies (server/openai/request.h).
Result<EmbeddingRequest> ParseEmbeddingRequest(std::string_view body, const OpenAiContext& context);

Status CheckDimensions(int dimensions);
// Error: kInvalidArgument, this server makes no embeddings.
Status CheckPoolsStates(const FrontendOptions& options);
// Makes the pool of each prompt. Error: kInvalidArgument, the model's states have fewer dimensions.
Status AddPools(int hidden_size, EmbeddingRequest* request);
// What the Frontend says of a prompt, of the member `input` that prompts came in.
Status OfInput(const Status& status, const char* input);

}  // namespace diffserve
