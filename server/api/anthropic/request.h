// SPDX-License-Identifier: Apache-2.0
// The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens, read into our own
// types. No I/O, no engine.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "server/api/fields/members.h"
#include "server/api/fields/read_context.h"
#include "server/serving/answer/answer_request.h"

namespace diffserve {

namespace members {

inline constexpr MemberRow kMessages[] = {
    {kServed,
     "model messages system max_tokens stop_sequences stream tools tool_choice thinking "
     "output_config output_format cache_salt"},
    {kIgnored,
     "metadata service_tier cache_control inference_geo betas speed mcp_servers "
     "context_management parallel_tool_calls include_reasoning diagnostics user_profile_id "
     "workspace_id billing_policy fallbacks fallback_credit_token"},
    {kRefused, "container prompt compaction thread"},
};
inline constexpr MemberTable kMessagesTables[] = {kMessages, kSampling};

}  // namespace members

// Thinking of earlier turns is dropped from the conversation, and so are cache marks, the vendor's
// own tools and their results. The answer continues a last message of the assistant.
// `max_tokens` is an upper limit: the answer is shorter if the context leaves less. Error:
// kInvalidArgument with the member.
Result<AnswerRequest> ParseMessagesRequest(std::string_view body, const ReadContext& context);
// The same without max_tokens; only the prompt is used.
Result<AnswerRequest> ParseCountTokensRequest(std::string_view body, const ReadContext& context);

}  // namespace diffserve
