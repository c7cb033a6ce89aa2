// SPDX-License-Identifier: Apache-2.0
// The body of POST /v1/attention, parsed. No I/O, no engine.
#pragma once

#include <string_view>

#include "server/api/fields/members.h"
#include "server/api/fields/read_context.h"
#include "server/serving/answer/answer_request.h"
#include "server/serving/attention_call.h"

namespace diffserve {

namespace members {

inline constexpr MemberRow kAttention[] = {
    {kServed,
     "model tokens text messages add_generation_prompt continue_final_message "
     "chat_template_kwargs heads positions top_k span layers encoding"},
};
inline constexpr MemberTable kAttentionTables[] = {kAttention};

}  // namespace members

struct OpenAiAttentionRequest {
  AttentionRequest attention;
  bool float16 = false;  // full maps as base64 of little-endian float16, else as JSON numbers
};

// Errors: as for other bodies (server/api/openai/request.h).
Result<OpenAiAttentionRequest> ParseAttentionRequest(std::string_view body,
                                                     const ReadContext& context);

}  // namespace diffserve
