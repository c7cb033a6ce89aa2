// SPDX-License-Identifier: Apache-2.0
// Members that the replies of several APIs share: OpenAI's error, which every route has that gives
// no other form, and its usage.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/http/message.h"
#include "server/json/json_writer.h"

namespace diffserve {

// {"error": {"message", "type", "param", "code"}}: always four keys; param and code are null if
// there is nothing to say.
std::string OpenAiErrorBody(const Status& status);
// An error with its HTTP status and the fields that belong to it. `min_retry_after_s`: of 429 and
// 503.
HttpReply ErrorReply(const Status& status, std::string body, int min_retry_after_s);
// An error of HTTP, whose status has no StatusCode. `body` makes an error's body.
HttpReply HttpErrorReply(int http_status, std::string_view reason,
                         const std::function<std::string(const Status& status)>& body,
                         int min_retry_after_s);
HttpReply JsonReply(std::string body);
void AddOpenAiError(const Status& status, JsonWriter* json);  // the member "error"
// The member "usage", whose object the caller ends.
void BeginOpenAiUsage(const Usage& usage, bool with_cached, JsonWriter* json);
// The member "timings" of llama.cpp. A rate and a time per token count the tokens after the first
// of each of the `choices`, which come in the time that is given; 0 if there are none.
void AddTimings(const Usage& usage, const GenerationTimes& times, size_t choices, JsonWriter* json);

}  // namespace diffserve
