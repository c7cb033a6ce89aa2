// What a request gets that says nothing of it: the defaults of the model's generation_config.json.
#pragma once

#include "models/model_config.h"
#include "server/frontend.h"

namespace diffserve {

// All but the seed.
SamplingParams SamplingDefaults(const ModelConfig& config);

// How long an answer gets. What the API or the request says of it comes first.
void SetDefaultLength(const ModelConfig& config, GenerateRequest* request);

}  // namespace diffserve
