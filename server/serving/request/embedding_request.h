// SPDX-License-Identifier: Apache-2.0
// EmbeddingRequest: hidden states of prompts, pooled, for every API that has embeddings.
#pragma once

#include <optional>

#include "models/diagnostics/hidden_state_pool.h"
#include "server/serving/request/generate_request.h"

namespace diffserve {

struct EmbeddingRequest {
  GenerateRequest generate;  // one prompt per input, without generation
  HiddenStatePool::Kind pooling = HiddenStatePool::Kind::kMean;
  std::optional<int> dimensions;  // nullopt: those of the hidden state
  bool base64 = false;            // base64 of little-endian float32, else JSON numbers
};

Status CheckDimensions(int dimensions);
// Makes the pool of each prompt. Error: kInvalidArgument if the model's states have fewer
// dimensions.
Status AddPools(int hidden_size, EmbeddingRequest* request);

}  // namespace diffserve
