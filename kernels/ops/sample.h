// Sampling of one token from one row of logits, and log-probabilities.
//
// Order of operations, as in vLLM: logit_bias, then repetition, frequency and presence penalties,
// then min_tokens' ban of the stop ids, then temperature, top_k, top_p, min_p, then one draw.
// temperature 0 is greedy: the largest logit, ties to the smallest id. The draw is a function of
// (seed, sequence, position) alone: same key and logits, same token, whatever else is in the batch
// and whichever device draws (sample_arithmetic.h). Log-probabilities are log_softmax of the logits
// as the model gave them, before bias, penalties and temperature (vLLM's default).
#pragma once

#include <cstdint>
#include <span>
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
};

inline bool UsesPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
         params.presence_penalty != 0.0f;
}

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampleResult {
  int32_t token = 0;
  bool finite = true;  // false: the row held a NaN, +Inf or nothing finite; the other fields mean
                       // nothing then
  float logprob = 0;   // of `token`, if num_logprobs >= 0; at least -9999, as JSON has no -Infinity
  std::vector<TokenLogprob> top_logprobs;  // most likely first, ties to the smaller id
};

struct SampleArgs {
  std::span<const float> logits;  // [vocab]
  const SamplingParams* params = nullptr;
  uint64_t sequence = 0;  // index of the continuation (0 .. n-1)
  uint64_t position = 0;  // of the token to be drawn
  std::span<const int32_t> prompt_tokens;
  std::span<const int32_t> output_tokens;
  std::span<const int32_t> banned_tokens;  // not to be drawn now (EOS and stop ids while below
                                           // min_tokens)
};

SampleResult Sample(const SampleArgs& args);

// logprob of `token` and the `num_top` most likely ids under log_softmax(logits): for prompt
// logprobs.
SampleResult ScoreToken(std::span<const float> logits, int32_t token, int num_top);

}  // namespace diffserve
