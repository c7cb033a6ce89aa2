// SPDX-License-Identifier: Apache-2.0
// Members that the replies of several APIs share: OpenAI's error, which every route has that gives
// no other form, and its usage.
#pragma once

#include <string>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/json/json_writer.h"

namespace diffserve {

// {"error": {"message", "type", "param", "code"}}: always four keys; param and code are null if
// there is nothing to say.
std::string OpenAiErrorBody(const Status& status);
void AddOpenAiError(const Status& status, JsonWriter* json);  // the member "error"
// The member "usage", whose object the caller ends.
void BeginOpenAiUsage(const Usage& usage, bool with_cached, JsonWriter* json);

}  // namespace diffserve
