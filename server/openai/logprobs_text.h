// Log-probabilities as JSON in OpenAI's and vLLM's forms, a token at a time.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/ops/sampling_types.h"

namespace diffserve {

// What a token stands for; may be part of a character.
using TokenBytes = std::function<std::string(int32_t)>;

// What tokens stand for in a text.
struct TokenTexts {
  TokenBytes bytes;
  TokenBytes first_bytes;  // of a token that no text comes before
  std::function<bool(int32_t)> is_special;

  const TokenBytes& At(bool opens_text) const { return opens_text ? first_bytes : bytes; }
};

// A token's text as JSON; one that is part of a character is shown as its bytes, so that different
// tokens stay different.
void AppendTokenKey(const std::string& bytes, std::string* out);
// The same, or where `as_id` "token_id:ID".
void AppendTokenName(int32_t id, const TokenBytes& token_bytes, bool as_id, std::string* out);
void AppendLogprob(float logprob, std::string* out);
int64_t CharactersStartedIn(std::string_view bytes);

// An entry of `top_logprobs` of a completion: {"text": logprob} of the first `num_top` others and
// of the token itself. More may have been computed than is shown.
void AppendTopLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                       std::string* out, bool as_ids = false);
// An entry of `content` of a chat's logprobs.
void AppendChatLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                        std::string* out, bool as_ids = false);
// An entry of vLLM's `prompt_logprobs`: an object of id to {logprob, rank, decoded_token}.
void AppendPromptLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                          std::string* out);

}  // namespace diffserve
