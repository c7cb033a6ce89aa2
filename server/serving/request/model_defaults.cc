// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/model_defaults.h"

namespace diffserve {

SamplingSpec SamplingDefaults(const ModelConfig& config) {
  SamplingSpec sampling;
  sampling.temperature = config.default_temperature.value_or(sampling.temperature);
  sampling.top_p = config.default_top_p.value_or(sampling.top_p);
  sampling.top_k = config.default_top_k.value_or(sampling.top_k);
  sampling.min_p = config.default_min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = config.default_repetition_penalty.value_or(
      sampling.repetition_penalty);
  return sampling;
}

void SetDefaultLength(const ModelConfig& config, GenerateRequest* request) {
  if (request->max_tokens_default == 0)
    request->max_tokens_default = config.default_max_tokens.value_or(0);
}

}  // namespace diffserve
