// SPDX-License-Identifier: Apache-2.0
// Members of a body for sampling and stopping, with the same names on every generating route.
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "server/api/json/json.h"
#include "server/serving/answer_request.h"
#include "server/serving/frontend.h"

namespace diffserve {

// The members that ReadGeneration reads.
inline constexpr std::string_view kGenerationFields[] = {"max_tokens",
                                                         "max_completion_tokens",
                                                         "min_tokens",
                                                         "n",
                                                         "best_of",
                                                         "temperature",
                                                         "top_p",
                                                         "top_k",
                                                         "min_p",
                                                         "presence_penalty",
                                                         "frequency_penalty",
                                                         "repetition_penalty",
                                                         "logit_bias",
                                                         "seed",
                                                         "stop",
                                                         "stop_token_ids",
                                                         "include_stop_str_in_output",
                                                         "ignore_eos",
                                                         "skip_special_tokens",
                                                         "allowed_token_ids",
                                                         "bad_words",
                                                         "truncate_prompt_tokens",
                                                         "truncation_side"};

// The members that ReadSampling reads.
inline constexpr std::string_view kPlainSamplingFields[] = {"temperature",
                                                            "top_p",
                                                            "top_k",
                                                            "min_p",
                                                            "presence_penalty",
                                                            "frequency_penalty",
                                                            "repetition_penalty",
                                                            "logit_bias",
                                                            "seed",
                                                            "min_tokens",
                                                            "stop_token_ids",
                                                            "ignore_eos",
                                                            "skip_special_tokens",
                                                            "include_stop_str_in_output"};

// REQUIRES: `request->sampling` has the defaults.
void ReadSampling(JsonFields& fields, const FrontendOptions& limits, GenerateRequest* request);
// `stop`.
void ReadStops(JsonFields& fields, const FrontendOptions& limits, GenerateRequest* request);
// Both, and the lengths, token rules and truncation of OpenAI's and vLLM's routes.
void ReadGeneration(JsonFields& fields, const FrontendOptions& limits, GenerateRequest* request);
// `stream` and `stream_options`.
void ReadStream(JsonFields& fields, AnswerRequest* request);
// A count of alternatives. -1 is refused, because it means none internally.
void ReadLogprobs(JsonFields& fields, const char* name, const FrontendOptions& limits, int* out);

}  // namespace diffserve
