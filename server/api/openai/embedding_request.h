// SPDX-License-Identifier: Apache-2.0
// The body of POST /v1/embeddings, parsed. No I/O, no engine.
#pragma once

#include <optional>
#include <string_view>

#include "server/api/fields/members.h"
#include "server/api/fields/read_context.h"
#include "server/serving/request/embedding_request.h"

namespace diffserve {

namespace members {

inline constexpr MemberRow kEmbedding[] = {
    {kServed,
     "model input encoding_format dimensions pooling add_special_tokens truncate_prompt_tokens "
     "cache_salt normalize use_activation"},
    {kIgnored, "user request_id"},
    {kRefused,
     "messages prompt_embeds embed_dtype endianness truncation_side mm_processor_kwargs "
     "chat_template priority"},
};
inline constexpr MemberTable kEmbeddingTables[] = {kEmbedding};

}  // namespace members

// Errors: as for other bodies (server/api/openai/request.h).
Result<EmbeddingRequest> ParseEmbeddingRequest(std::string_view body, const ReadContext& context);

}  // namespace diffserve
