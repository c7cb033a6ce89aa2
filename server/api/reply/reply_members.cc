// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/reply_members.h"

#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

const char* ErrorCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kContextExceeded:
      return "context_length_exceeded";
    case StatusCode::kNotFound:
      return status.param() == "model" ? "model_not_found" : "not_found";
    case StatusCode::kUnauthenticated:
      return "invalid_api_key";
    case StatusCode::kResourceExhausted:
      return "rate_limit_exceeded";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadlineExceeded:
      return "deadline_exceeded";
    default:
      return nullptr;
  }
}

}  // namespace

void AddOpenAiError(const Status& status, JsonWriter* json) {
  const std::string& param = status.param();
  json->Key("error").Begin('{').Add("message", status.message());
  json->Add("type", WireStatusOf(status.code()).openai_type).Key("param");
  param.empty() ? json->Value(nullptr) : json->Value(param);
  json->Add("code", ErrorCode(status)).End('}');
}

void BeginOpenAiUsage(const Usage& usage, bool with_cached, JsonWriter* json) {
  json->Key("usage").Begin('{').Add("prompt_tokens", usage.prompt_tokens);
  json->Add("completion_tokens", usage.completion_tokens);
  json->Add("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  if (!with_cached) return;
  json->Key("prompt_tokens_details").Begin('{').Add("cached_tokens", usage.cached_tokens).End('}');
}

std::string OpenAiErrorBody(const Status& status) {
  return JsonObjectOf([&](JsonWriter& json) { AddOpenAiError(status, &json); });
}

}  // namespace diffserve
