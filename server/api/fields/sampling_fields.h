// SPDX-License-Identifier: Apache-2.0
// Members of a body for sampling and stopping, with the same names on every generating route.
// Thread safety: pure functions.
#pragma once

#include "server/json/json.h"
#include "server/serving/answer/answer_request.h"
#include "server/serving/frontend.h"

namespace diffserve {

// Reads members::kSampling.
// REQUIRES: `request->sampling` has the defaults.
void ReadSampling(JsonFields& fields, GenerateRequest* request);
// `stop`.
void ReadStops(JsonFields& fields, GenerateRequest* request);
// Both, and the rest of members::kGeneration.
void ReadGeneration(JsonFields& fields, GenerateRequest* request);
// `stream` and `stream_options`.
void ReadStream(JsonFields& fields, AnswerRequest* request);
// A count of alternatives. -1 is refused, because it means none internally.
void ReadLogprobs(JsonFields& fields, const char* name, int* out);

}  // namespace diffserve
