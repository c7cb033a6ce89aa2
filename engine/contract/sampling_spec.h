// SPDX-License-Identifier: Apache-2.0
// SamplingSpec: how a request's tokens are drawn, scored and stopped. A reader of an API fills it,
// server/serving checks it, and it goes whole to the engine. A new sampling field is declared here,
// or in SamplingParams if the sampling kernels read it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/sampling_types.h"

namespace diffserve {

struct SamplingSpec : SamplingParams {
  int min_tokens = 0;  // EOS and stop ids are banned until then
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids = {};  // end the sequence; stop_reason names the id
  int prompt_logprobs = -1;  // -1: none; 0..20: the logprob of each prompt token except the first,
                             // and this many top alternatives
};

}  // namespace diffserve
