// SPDX-License-Identifier: Apache-2.0
// The body of POST /v1/embeddings, parsed. No I/O, no engine.
#pragma once

#include <optional>
#include <string_view>

#include "server/api/fields/read_context.h"
#include "server/serving/embedding_request.h"

namespace diffserve {

// Errors: as for other bodies (server/api/openai/request.h).
Result<EmbeddingRequest> ParseEmbeddingRequest(std::string_view body, const ReadContext& context);

}  // namespace diffserve
