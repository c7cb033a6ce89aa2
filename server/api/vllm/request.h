// SPDX-License-Identifier: Apache-2.0
// The body of /inference/v1/generate, vLLM's route for token ids, converted to our own types:
// {"token_ids", "sampling_params": {...}, "model", "stream", "stream_options", "cache_salt",
// "priority", "request_id"}. No I/O, no engine.
#pragma once

#include <string>
#include <string_view>

#include "server/api/fields/members.h"
#include "server/api/fields/read_context.h"
#include "server/serving/answer/answer_request.h"

namespace diffserve {

namespace members {

inline constexpr MemberRow kToken[] = {
    {kServed,
     "token_ids sampling_params model stream priority stream_options cache_salt request_id"},
    {kIgnored, "prompt"},
    {kRefused, "features kv_transfer_params ec_transfer_params"},
};
inline constexpr MemberTable kTokenTables[] = {kToken};

// The members of sampling_params.
inline constexpr MemberRow kTokenSampling[] = {
    {kServed, "logprobs prompt_logprobs structured_outputs"},
    {kIgnored,
     "detokenize output_kind spaces_between_special_tokens length_penalty stream_interval"},
    {kRefused,
     "guided_decoding logits_processors use_beam_search logprob_token_ids flat_logprobs "
     "thinking_token_budget repetition_detection early_stopping skip_clone extra_args "
     "vllm_xargs prompt_embeds logits_processor"},
};
inline constexpr MemberTable kTokenSamplingTables[] = {kTokenSampling, kSampling, kGeneration};

}  // namespace members

struct TokenRequest {
  AnswerRequest request;
  std::string request_id;  // for the reply; empty: none was given
};

// Error: as for ParseCompletionRequest.
Result<TokenRequest> ParseTokenRequest(std::string_view body, const ReadContext& context);
}  // namespace diffserve
