// SPDX-License-Identifier: Apache-2.0
// Log-probabilities as JSON in OpenAI's and vLLM's formats.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "kernels/ops/sampling_types.h"
#include "server/json/json_writer.h"

namespace diffserve {

// The bytes of a token; possibly part of a character.
using TokenBytes = std::function<std::string(int32_t)>;

// The bytes of tokens within a text.
struct TokenTexts {
  TokenBytes bytes;
  TokenBytes first_bytes;  // of a token at the start of a text
  std::function<bool(int32_t)> is_special;
  bool are_missing = false;  // the model has no tokenizer: tokens are named by their ids

  const TokenBytes& At(bool opens_text) const { return opens_text ? first_bytes : bytes; }
};

// A token's text. A token that is part of a character is shown as its bytes, so that different
// tokens stay different. With `as_id`, "token_id:ID".
std::string TokenName(int32_t id, const TokenBytes& token_bytes, bool as_id);
// JSON has no infinity; other servers send -9999 for a probability of zero.
double LogprobNumber(float logprob);
int64_t CharactersStartedIn(std::string_view bytes);

// How log-probabilities are shown. It outlives what is written in pieces.
struct LogprobForm {
  TokenTexts texts;
  int num_top = 0;         // alternatives per generated token; more may have been computed
  int num_prompt_top = 0;  // and per token of a prompt
  bool as_ids = false;     // tokens are named by their ids
};

// Tokens of an answer; the first is at the start of a text.
struct GeneratedTokens {
  const std::vector<SampleResult>& tokens;
  size_t opening_tokens = 0;
};

// An entry of `top_logprobs` of a completion: {"text": logprob} for the alternatives and the token
// itself.
void WriteTopLogprobs(const SampleResult& sample, const LogprobForm& form, bool opens_text,
                      JsonWriter* json);
// The list `content` of a chat's logprobs, in pieces.
void WriteChatLogprobs(GeneratedTokens generated, const LogprobForm& form, JsonWriter* json);
// vLLM's list `prompt_logprobs`, in pieces: null for the first token, then objects of id to
// {logprob, rank, decoded_token}.
void WritePromptLogprobs(PromptScores scores, size_t opening_tokens, const LogprobForm& form,
                         JsonWriter* json);

}  // namespace diffserve
