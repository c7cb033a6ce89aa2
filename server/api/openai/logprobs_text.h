// SPDX-License-Identifier: Apache-2.0
// Log-probabilities as JSON in OpenAI's and vLLM's formats, one token at a time.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/ops/sampling_types.h"

namespace diffserve {

// The bytes of a token; possibly part of a character.
using TokenBytes = std::function<std::string(int32_t)>;

// The bytes of tokens within a text.
struct TokenTexts {
  TokenBytes bytes;
  TokenBytes first_bytes;  // of a token at the start of a text
  std::function<bool(int32_t)> is_special;

  const TokenBytes& At(bool opens_text) const { return opens_text ? first_bytes : bytes; }
};

// A token's text as JSON. A token that is part of a character is shown as its bytes, so that
// different tokens stay different.
void AppendTokenKey(const std::string& bytes, std::string* out);
// The same; with `as_id`, "token_id:ID".
void AppendTokenName(int32_t id, const TokenBytes& token_bytes, bool as_id, std::string* out);
void AppendLogprob(float logprob, std::string* out);
int64_t CharactersStartedIn(std::string_view bytes);

// An entry of `top_logprobs` of a completion: {"text": logprob} for the first `num_top`
// alternatives and the token itself. More may have been computed than are shown.
void AppendTopLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                       std::string* out, bool as_ids = false);
// An entry of `content` of a chat's logprobs.
void AppendChatLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                        std::string* out, bool as_ids = false);
// An entry of vLLM's `prompt_logprobs`: an object of id to {logprob, rank, decoded_token}.
void AppendPromptLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                          std::string* out);

}  // namespace diffserve
