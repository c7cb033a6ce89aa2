// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/embedding_request.h"

#include <memory>
#include <string>

#include "kernels/base/refusal.h"

namespace diffserve {

Status CheckDimensions(int dimensions) {
  if (dimensions >= 1) return {};
  return BelowMin("dimensions", dimensions, 1);
}

Status AddPools(int hidden_size, EmbeddingRequest* request) {
  const int dimensions = request->dimensions.value_or(hidden_size);
  if (dimensions > hidden_size) {
    return NotAllowed("dimensions is " + std::to_string(dimensions),
                      "at most " + std::to_string(hidden_size) + ", the model's hidden size",
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
