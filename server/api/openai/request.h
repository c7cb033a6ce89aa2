// SPDX-License-Identifier: Apache-2.0
// The bodies of OpenAI's routes (with vLLM's additions), parsed into our own types. No I/O, no
// engine: the fuzz target runs this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/fields/members.h"
#include "server/api/fields/read_context.h"
#include "server/serving/answer/answer_request.h"

namespace diffserve {

namespace members {

inline constexpr MemberRow kTokenize[] = {
    {kServed,
     "model prompt messages return_token_strs add_special_tokens add_generation_prompt "
     "continue_final_message chat_template_kwargs tools"},
    {kRefused, "chat_template documents mm_processor_kwargs media_io_kwargs return_token_offsets"},
};
inline constexpr MemberTable kTokenizeTables[] = {kTokenize};
inline constexpr MemberRow kDetokenize[] = {
    {kServed, "model tokens"},
};
inline constexpr MemberTable kDetokenizeTables[] = {kDetokenize};

}  // namespace members

struct OpenAiRequest : AnswerRequest {
  bool echo = false;
  int prompt_logprobs = -1;  // as the client asked; generate.sampling.prompt_logprobs also serves
                             // echo
  bool return_token_ids = false;
  bool predicts = false;       // of a chat: the usage says what became of the prediction
  bool timings = false;        // of each chunk, or of the body
  bool tokens_as_ids = false;  // log-probabilities name tokens "token_id:ID"
};

// Error: kInvalidArgument with the member as `param`; its message distinguishes a known but
// unsupported member from a wrong value.
Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const ReadContext& context);
Result<OpenAiRequest> ParseChatRequest(std::string_view body, const ReadContext& context);

struct TokenizeRequest {
  std::string model;
  Prompt prompt;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};
Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const ReadContext& context);

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};
Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body, const ReadContext& context);

}  // namespace diffserve
