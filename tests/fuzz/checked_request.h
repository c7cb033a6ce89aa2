// SPDX-License-Identifier: Apache-2.0
// What a request promises the engine once it has passed the checks, whichever port it came by.
#pragma once

#include <cmath>
#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/process/check.h"
#include "server/serving/request/generate_request.h"
#include "server/serving/request/request_checks.h"

namespace diffserve::testing {

inline constexpr int kFuzzedVocab = 1000;
inline constexpr int kFuzzedModelLen = 4096;

inline RequestLimits FuzzedLimits(const ServedNames& names) {
  return {&names, kFuzzedVocab, kFuzzedModelLen, /*max_waiting_requests=*/256};
}

inline void CheckIds(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) DS_CHECK(id >= 0 && id < kFuzzedVocab, "an id is a token");
}

inline void CheckSamplingPromises(const SamplingParams& sampling) {
  DS_CHECK(std::isfinite(sampling.temperature) && sampling.temperature >= 0, "temperature");
  DS_CHECK(sampling.top_p > 0 && sampling.top_p <= 1, "top_p");
  DS_CHECK(sampling.top_k >= 0, "top_k");
  DS_CHECK(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p");
  DS_CHECK(sampling.repetition_penalty > 0, "repetition_penalty");
  DS_CHECK(std::abs(sampling.presence_penalty) <= 2, "presence_penalty");
  DS_CHECK(std::abs(sampling.frequency_penalty) <= 2, "frequency_penalty");
  DS_CHECK(sampling.num_logprobs >= -1 && sampling.num_logprobs <= kMaxLogprobs, "logprobs");
  DS_CHECK(sampling.logit_bias.size() <= kMaxLogitBias, "logit_bias is bounded");
  for (const auto& [id, bias] : sampling.logit_bias) {
    CheckIds({id});
    DS_CHECK(std::abs(bias) <= 100, "a bias");
  }
}

// REQUIRES: CheckRequest was ok with FuzzedLimits.
inline void CheckPromises(const GenerateRequest& request) {
  DS_CHECK(!request.prompts.empty() && request.prompts.size() <= kMaxPrompts, "prompts");
  for (const Prompt& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (ids == nullptr) continue;
    DS_CHECK(!ids->empty(), "a prompt's length");
    DS_CHECK(ids->size() <= size_t{kFuzzedModelLen} || request.truncate_prompt_tokens,
             "a prompt that is not cut fits");
    CheckIds(*ids);
  }
  DS_CHECK(request.n >= 1 && request.n <= kMaxN, "n");
  const int max_tokens = request.max_tokens.value_or(kFuzzedModelLen);
  DS_CHECK(max_tokens >= 0, "max_tokens");
  DS_CHECK(request.sampling.min_tokens >= 0 && request.sampling.min_tokens <= max_tokens,
           "min_tokens");
  DS_CHECK(
      request.sampling.prompt_logprobs >= -1 && request.sampling.prompt_logprobs <= kMaxLogprobs,
      "prompt_logprobs");
  DS_CHECK(request.stop.size() <= kMaxStopStrings, "stop strings are bounded");
  for (const std::string& stop : request.stop)
    DS_CHECK(!stop.empty() && stop.size() <= kMaxStopBytes, "a stop string");
  CheckIds(request.sampling.stop_token_ids);
  CheckIds(request.allowed_token_ids);
  DS_CHECK(request.allowed_token_ids.size() <= kMaxAllowedTokenIds, "allowed tokens");
  DS_CHECK(request.bad_words.size() <= kMaxBadWords, "bad words are bounded");
  for (const std::string& word : request.bad_words)
    DS_CHECK(!word.empty() && word.size() <= kMaxBadWordsBytes, "a bad word");
  const int kept = request.truncate_prompt_tokens.value_or(-1);
  DS_CHECK(kept == -1 || (kept >= 1 && kept <= kFuzzedModelLen), "truncate_prompt_tokens");
  CheckSamplingPromises(request.sampling);
}

}  // namespace diffserve::testing
