// SPDX-License-Identifier: Apache-2.0
// The bodies of OpenAI's routes (with vLLM's additions), parsed into our own types. No I/O, no
// engine: the fuzz target runs this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/serving/answer/answer_parser.h"
#include "server/serving/frontend.h"

namespace diffserve {

struct OpenAiContext {
  const FrontendOptions* limits = nullptr;
  SamplingParams default_sampling;
  bool strict = false;  // refuse unknown members
};

struct OpenAiRequest {
  GenerateRequest generate;
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool logprobs = false;     // generate.sampling.num_logprobs: how many alternatives
  int prompt_logprobs = -1;  // as the client asked; generate.prompt_logprobs also serves echo
  bool return_token_ids = false;
  AnswerForm answer;              // chat: how the answer's text is read
  bool include_reasoning = true;  // false: reasoning is parsed and omitted
  // Special tokens are shown because the format's markers need them; the token that ends the text
  // is hidden.
  bool hides_eos = false;
  bool tokens_as_ids = false;  // log-probabilities name tokens "token_id:ID"
};

// Error: kInvalidArgument with the member as `param`; its message distinguishes a known but
// unsupported member from a wrong value.
Result<OpenAiRequest> ParseCompletionRequest(std::string_view body, const OpenAiContext& context);
Result<OpenAiRequest> ParseChatRequest(std::string_view body, const OpenAiContext& context);
// Whether the chat route uses or refuses a member of this name.
bool IsChatMember(std::string_view name);

struct TokenizeRequest {
  std::string model;
  Prompt prompt;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};
Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body, const OpenAiContext& context);

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};
Result<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                 const OpenAiContext& context);

}  // namespace diffserve
