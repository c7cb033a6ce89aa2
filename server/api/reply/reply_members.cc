// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/reply_members.h"

#include <algorithm>
#include <utility>

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
    case StatusCode::kDeviceLost:
      return "unavailable";
    case StatusCode::kDeadlineExceeded:
      return "deadline_exceeded";
    default:
      return nullptr;
  }
}

}  // namespace

HttpReply JsonReply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

HttpReply ErrorReply(const Status& status, std::string body, int min_retry_after_s) {
  HttpReply reply;
  reply.status = WireStatusOf(status.code()).http;
  reply.body = std::move(body);
  const int retry_after_s = std::max(min_retry_after_s, status.retry_after_s());
  if (reply.status == 429 || reply.status == 503)
    reply.fields.emplace_back("Retry-After", std::to_string(retry_after_s));
  if (reply.status == 401) reply.fields.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

HttpReply HttpErrorReply(int http_status, std::string_view reason,
                         const std::function<std::string(const Status& status)>& body,
                         int min_retry_after_s) {
  const StatusCode code = http_status == 503   ? StatusCode::kUnavailable
                          : http_status == 500 ? StatusCode::kInternal
                          : http_status == 413 ? StatusCode::kTooLarge
                                               : StatusCode::kInvalidArgument;
  const Status status(code, std::string(reason));
  HttpReply reply = ErrorReply(status, body(status), min_retry_after_s);
  reply.status = http_status;
  return reply;
}

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

void AddTimings(const Usage& usage, const GenerationTimes& times, size_t choices,
                JsonWriter* json) {
  const auto quotient = [](double a, double b) { return b > 0 ? a / b : 0; };
  const int64_t prompt_n = usage.prompt_tokens - usage.cached_tokens;
  const int64_t predicted_n = usage.completion_tokens;
  const auto prompt = static_cast<double>(prompt_n);
  const auto later = static_cast<double>(
      std::max<int64_t>(0, predicted_n - static_cast<int64_t>(choices)));
  json->Key("timings").Begin('{').Add("cache_n", usage.cached_tokens).Add("prompt_n", prompt_n);
  json->Add("prompt_ms", 1e3 * times.prompt_s);
  json->Add("prompt_per_token_ms", quotient(1e3 * times.prompt_s, prompt));
  json->Add("prompt_per_second", quotient(prompt, times.prompt_s));
  json->Add("predicted_n", predicted_n).Add("predicted_ms", 1e3 * times.tokens_s);
  json->Add("predicted_per_token_ms", quotient(1e3 * times.tokens_s, later));
  json->Add("predicted_per_second", quotient(later, times.tokens_s)).End('}');
}

std::string OpenAiErrorBody(const Status& status) {
  return JsonObjectOf([&](JsonWriter& json) { AddOpenAiError(status, &json); });
}

}  // namespace diffserve
