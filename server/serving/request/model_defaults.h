// SPDX-License-Identifier: Apache-2.0
// Defaults of a request, from the model's generation_config.json.
#pragma once

#include "models/model_config.h"
#include "server/serving/request/generate_request.h"

namespace diffserve {

// All sampling parameters except the seed.
SamplingSpec SamplingDefaults(const ModelConfig& config);

// The default length of an answer. The API's default or the request's value takes precedence.
void SetDefaultLength(const ModelConfig& config, GenerateRequest* request);

}  // namespace diffserve
