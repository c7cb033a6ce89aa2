// SPDX-License-Identifier: Apache-2.0
// The values of sampling: the client's parameters and a token's result. Plain values without
// functions, shared by every layer.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace diffserve {

struct SamplingParams {
  float temperature = 1.0f;                                // >= 0
  float top_p = 1.0f;                                      // (0, 1]
  int top_k = 0;                                           // 0 = off
  float min_p = 0.0f;                                      // [0, 1]
  float presence_penalty = 0.0f;                           // [-2, 2], on generated tokens
  float frequency_penalty = 0.0f;                          // [-2, 2], on generated tokens
  float repetition_penalty = 1.0f;                         // > 0, on prompt and generated tokens
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token id, [-100, 100]
  uint64_t seed = 0;
  int num_logprobs = -1;  // -1: none; 0..20: the chosen token and that many alternatives

  bool uses_penalties() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampleResult {
  int32_t token = 0;
  // False: the row held a NaN, +Inf or no finite value; the other fields are then meaningless.
  bool finite = true;
  float logprob = 0;  // of `token`, if num_logprobs >= 0; at least -9999, as JSON has no -Infinity
  std::vector<TokenLogprob> top_logprobs = {};  // most likely first, ties to the smaller id
};

}  // namespace diffserve
