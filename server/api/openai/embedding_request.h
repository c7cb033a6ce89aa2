// SPDX-License-Identifier: Apache-2.0
// The bodies of POST /v1/embeddings and POST /pooling, parsed. No I/O, no engine.
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
inline constexpr MemberRow kPooling[] = {
    {kServed,
     "model input messages task encoding_format use_activation normalize add_special_tokens "
     "truncate_prompt_tokens cache_salt add_generation_prompt continue_final_message "
     "chat_template_kwargs"},
    {kIgnored, "user request_id"},
    {kRefused,
     "data dimensions embed_dtype endianness padding truncation_side mm_processor_kwargs "
     "media_io_kwargs chat_template priority"},
};
inline constexpr MemberTable kPoolingTables[] = {kPooling};

}  // namespace members

// Errors: as for other bodies (server/api/openai/request.h).
Result<EmbeddingRequest> ParseEmbeddingRequest(std::string_view body, const ReadContext& context);
// vLLM's route for the states of each token, by default at unit length.
Result<EmbeddingRequest> ParsePoolingRequest(std::string_view body, const ReadContext& context);

}  // namespace diffserve
