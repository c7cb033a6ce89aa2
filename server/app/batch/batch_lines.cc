// SPDX-License-Identifier: Apache-2.0
#include "server/app/batch/batch_lines.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/head/random_id.h"
#include "server/json/json.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

constexpr std::string_view kUrls[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                      "/v1/responses"};
// A body within its own limits is within these, one level deeper.
constexpr JsonLimits kLineLimits = {.max_depth = JsonLimits().max_depth + 1,
                                    .max_values = JsonLimits().max_values + 8,
                                    .name = "the line"};
constexpr char kIdPrefix[] = "batch_req_";
constexpr size_t kMaxUrlBytes = 1024;

std::string UrlsText() {
  std::string text;
  for (const std::string_view url : kUrls) text += (text.empty() ? "" : ", ") + std::string(url);
  return text;
}

BatchError ErrorAt(uint64_t line, std::string code, const std::string& message,
                   std::string param = {}) {
  return {
      {}, line, std::move(code), "line " + std::to_string(line) + ": " + message, std::move(param)};
}

// The members besides custom_id.
std::optional<BatchError> ReadMembers(JsonFields& fields, size_t max_body_bytes,
                                      BatchRequest& request) {
  const auto error = [&request](const char* code, const std::string& message, const char* param) {
    return ErrorAt(request.line, code, message, param);
  };
  std::string method;
  fields.String("method", kMaxUrlBytes, &method);
  fields.String("url", kMaxUrlBytes, &request.url);
  fields.ObjectText("body", max_body_bytes, &request.body);
  if (const Status& status = fields.status(); !status.ok())
    return error("invalid_type", status.message(), status.param().c_str());
  for (const char* name : {"method", "url", "body"}) {
    if (!fields.Has(name))
      return error("missing_required_parameter", Missing(name).message(), name);
  }
  if (method != "POST")
    return error("invalid_method", RefusalText("method is " + QuotedText(method), "POST"),
                 "method");
  if (std::ranges::find(kUrls, request.url) == std::end(kUrls)) {
    return error("invalid_url", RefusalText("url is " + QuotedText(request.url), UrlsText()),
                 "url");
  }
  for (const JsonFields& body : fields.Object("body")) {
    if (!body.IsOff("stream")) {
      return error("stream_not_supported",
                   RefusalText("body.stream is on", "false, because an answer is one line"),
                   "body.stream");
    }
  }
  return std::nullopt;
}

// What every line of the output begins with, before the rest of its id.
std::string FirstBytes() {
  std::string text;
  JsonWriter(&text).Begin('{').Add("id", kIdPrefix);
  text.pop_back();
  return text;
}

// What follows custom_id.
std::string AfterCustomId() {
  std::string text;
  JsonWriter(&text).Add("custom_id", nullptr).Key("response");
  return text.substr(text.find(','));
}

// The members that every line of the output begins with.
JsonWriter& BeginLine(const std::string& custom_id, JsonWriter& json) {
  json.Begin('{').Add("id", kIdPrefix + RandomHex(32));
  return json.Key("custom_id").Value(custom_id.empty() ? std::optional<std::string>() : custom_id);
}

}  // namespace

std::variant<BatchRequest, BatchError> ReadBatchLine(const TextLine& line, size_t max_body_bytes) {
  if (line.is_cut) {
    return ErrorAt(line.number, "line_too_long",
                   RefusalText("has " + std::to_string(line.bytes) + " bytes",
                               "at most " + std::to_string(line.text.size())));
  }
  Result<JsonFields> fields = JsonFields::Parse(line.text, kLineLimits);
  if (!fields.ok()) return ErrorAt(line.number, "invalid_json_line", fields.status().message());
  BatchRequest request;
  request.line = line.number;
  fields->String("custom_id", kMaxCustomIdBytes, &request.custom_id);
  if (!fields->status().ok()) {
    return ErrorAt(line.number, "invalid_type", fields->status().message(), "custom_id");
  }
  if (request.custom_id.empty()) {
    return ErrorAt(line.number, "missing_required_parameter",
                   fields->Has("custom_id") ? "custom_id is empty" : "custom_id is missing",
                   "custom_id");
  }
  if (std::optional<BatchError> error = ReadMembers(*fields, max_body_bytes, request)) {
    error->custom_id = request.custom_id;
    return *std::move(error);
  }
  return request;
}

BatchError DuplicateError(const std::string& custom_id, uint64_t line) {
  return ErrorAt(line, "duplicate_custom_id",
                 "custom_id " + ShownJson(custom_id) + " is also that of an earlier line",
                 "custom_id");
}

std::string AnswerLine(const std::string& custom_id, const HttpReply& reply) {
  std::string request_id;
  for (const auto& [name, value] : reply.fields) {
    if (name == "X-Request-Id") request_id = value;
  }
  std::string text;
  JsonWriter json(&text);
  BeginLine(custom_id, json).Key("response").Begin('{');
  json.Add("status_code", reply.status).Add("request_id", request_id);
  json.Key("body").Json(reply.body).End('}').Add("error", nullptr).End('}');
  return text + "\n";
}

std::string ErrorLine(const BatchError& error) {
  std::string text;
  JsonWriter json(&text);
  BeginLine(error.custom_id, json).Add("response", nullptr).Key("error").Begin('{');
  json.Add("code", error.code).Add("message", error.message);
  json.Key("param").Value(error.param.empty() ? std::optional<std::string>() : error.param);
  json.Add("line", error.line).End('}').End('}');
  return text + "\n";
}

// A quote within a text has a backslash before it, so the first AfterCustomId is not within one.
Result<AnsweredLine> ReadAnswerLine(std::string_view text) {
  const size_t head_end = text.find(AfterCustomId());
  if (head_end == std::string_view::npos) return InvalidArgument("has no custom_id and response");
  Result<JsonFields> head = JsonFields::Parse(std::string(text.substr(0, head_end)) + "}",
                                              kLineLimits);
  if (!head.ok()) return head.status();
  std::string custom_id;
  head->String("custom_id", kMaxCustomIdBytes, &custom_id);
  DS_RETURN_IF_ERROR(head->status());
  if (!custom_id.empty()) return AnsweredLine(custom_id);
  Result<JsonFields> whole = JsonFields::Parse(text, kLineLimits);
  if (!whole.ok()) return whole.status();
  uint64_t line = 0;
  for (JsonFields& error : whole->Object("error")) {
    error.Seed("line", &line);
    DS_RETURN_IF_ERROR(error.status());
  }
  if (line == 0) return InvalidArgument("has neither custom_id nor error.line");
  return AnsweredLine(line);
}

bool BeginsAnswerLine(std::string_view text) {
  const std::string first = FirstBytes();
  return text.substr(0, first.size()) == std::string_view(first).substr(0, text.size());
}

}  // namespace diffserve
