// SPDX-License-Identifier: Apache-2.0
// The body of OpenAI's /v1/responses, read in two steps: first its own members; then, when the
// previous response is found, the conversation of both. No I/O, no engine.
// Thread safety: pure functions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/fields/members.h"
#include "server/api/fields/read_context.h"
#include "server/api/responses/encoder.h"
#include "server/api/responses/store.h"
#include "server/serving/answer/answer_request.h"

namespace diffserve {

namespace members {

inline constexpr MemberRow kResponses[] = {
    {kServed,
     "model input instructions max_output_tokens stream text tools tool_choice store "
     "previous_response_id metadata reasoning parallel_tool_calls truncation include stop "
     "priority cache_salt user safety_identifier prompt_cache_key top_logprobs"},
    {kIgnored,
     "service_tier stream_options prompt_cache_retention context_management max_tool_calls "
     "client_metadata include_reasoning prompt_cache_options access_programs background_options "
     "image"},
    {kRefused, "background conversation prompt moderation suffix"},
};
inline constexpr MemberTable kResponsesTables[] = {kResponses, kSampling};

}  // namespace members

struct ResponsesRequest {
  std::string previous_response_id;  // empty: none
  bool store = true;
  AnswerRequest request;  // without `input`, instructions and what was said before
  std::optional<Message> instructions;
  std::vector<Message> messages;  // of `input`
  ToolChoice tool_choice;
  std::string echo;     // members of the request that the reply repeats
  ResponseInput input;  // without the conversation

  size_t HeldBytes() const;
};

// An item of a stored answer, by its id.
using FindResponseItem = std::function<std::optional<ResponseItem>(const std::string& id)>;

// Reasoning of earlier turns is dropped from the conversation, and so are the vendor's tools and
// their results. Error: kInvalidArgument with the member.
Result<ResponsesRequest> ParseResponsesRequest(std::string_view body, const ReadContext& context,
                                               const FindResponseItem& find = {});

struct ResponsesChat {
  AnswerRequest request;
  std::shared_ptr<const std::string> echo;     // with the server's choices
  std::shared_ptr<const ResponseInput> input;  // with the whole conversation
};
// `previous`: the response that is continued, or nothing. Error: as above.
Result<ResponsesChat> ChatOf(const ResponsesRequest& request, const StoredResponse* previous,
                             const ReadContext& context);

}  // namespace diffserve
