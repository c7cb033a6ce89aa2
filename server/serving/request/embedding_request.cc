// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/embedding_request.h"

#include <memory>
#include <string>

namespace diffserve {

Status CheckDimensions(int dimensions) {
  if (dimensions >= 1) return {};
  return InvalidArgument("dimensions is " + std::to_string(dimensions) + "; allowed is 1 or more",
                         "dimensions");
}

Status CheckPoolsStates(const FrontendOptions& options) {
  if (!options.on_gpu) return {};
  return InvalidArgument(
      "hidden states and embeddings need --device cpu; this server runs with --device cuda");
}

Status OfInput(const Status& status, const char* input) {
  if (status.param() != "prompt" && status.param() != "n") return status;
  return Status(status.code(), status.message(), input).WithRetryAfter(status.retry_after_s());
}

Status AddPools(int hidden_size, EmbeddingRequest* request) {
  const int dimensions = request->dimensions.value_or(hidden_size);
  if (dimensions > hidden_size) {
    return InvalidArgument("dimensions is " + std::to_string(dimensions) +
                               "; the model's hidden state has " + std::to_string(hidden_size),
                           "dimensions");
  }
  GenerateRequest& generate = request->generate;
  for (size_t i = 0; i < generate.prompts.size(); ++i) {
    generate.pools.push_back(
        std::make_shared<HiddenStatePool>(request->pooling, hidden_size, dimensions));
  }
  return {};
}

}  // namespace diffserve
