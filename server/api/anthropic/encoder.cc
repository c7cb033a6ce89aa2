// SPDX-License-Identifier: Apache-2.0
#include "server/api/anthropic/encoder.h"

#include <utility>
#include <variant>

#include "kernels/base/check.h"
#include "server/api/json/json.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

using Kind = AnswerPart::Kind;

const char* ErrorType(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kContextExceeded:
    case StatusCode::kUnimplemented:
      return "invalid_request_error";
    case StatusCode::kTooLarge:
      return "request_too_large";
    case StatusCode::kUnauthenticated:
      return "authentication_error";
    case StatusCode::kNotFound:
      return "not_found_error";
    case StatusCode::kResourceExhausted:
      return "rate_limit_error";
    case StatusCode::kUnavailable:
      return "overloaded_error";
    case StatusCode::kDeadlineExceeded:
      return "timeout_error";
    default:
      return "api_error";
  }
}

std::string UsageJson(int64_t prompt, int64_t cached, int64_t output) {
  return "{\"input_tokens\":" + std::to_string(prompt - cached) +
         ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":" +
         std::to_string(cached) + ",\"output_tokens\":" + std::to_string(output) + "}";
}

}  // namespace

std::string MessagesErrorBody(const Status& status, std::string_view request_id) {
  std::string body = "{\"type\":\"error\",\"error\":{\"type\":\"" +
                     std::string(ErrorType(status.code())) +
                     "\",\"message\":" + JsonQuoted(status.message()) + "}";
  if (!request_id.empty()) body += ",\"request_id\":" + JsonQuoted(request_id);
  return body + "}";
}

std::string InputTokensBody(size_t tokens) {
  return "{\"input_tokens\":" + std::to_string(tokens) + "}";
}

MessagesResponse::MessagesResponse(bool stream, MessagesIdentity identity, AnswerSplitter split)
    : stream_(stream), identity_(std::move(identity)), split_(std::move(split)) {}

void MessagesResponse::Take(ResponseEvent event) {
  DS_CHECK(written(), "an event is written before the next one comes");
  if (done_) return;
  if (auto* begun = std::get_if<ResponseStarted>(&event)) {
    const PromptInfo& prompt = begun->prompts.front();
    prompt_tokens_ = static_cast<int64_t>(prompt.token_ids.size());
    split_.begin(prompt);
  } else if (auto* delta = std::get_if<ResponseDelta>(&event)) {
    OnDelta(std::move(*delta));
  } else if (auto* done = std::get_if<ResponseDone>(&event)) {
    OnDone(std::move(*done));
  }
}

bool MessagesResponse::Write(size_t enough, std::string* out) {
  pieces_.Write(enough, out);
  return written();
}

void MessagesResponse::OnDelta(ResponseDelta event) {
  tokens_ += static_cast<int64_t>(event.tokens.size());
  const bool ends = event.finish != FinishReason::kNone;
  parts_.clear();
  split_.read(event, &parts_);
  if (stream_) Begin();
  for (const AnswerPart& part : parts_) TakePart(part);
  if (!ends) return;
  CloseBlock();
  finish_ = event.finish;
  if (auto* text = std::get_if<std::string>(&event.stop_reason)) {
    stop_sequence_ = std::move(*text);
    has_stop_sequence_ = true;
  }
}

// The part of a message before its content. The cached tokens are reported at the end.
std::string MessagesResponse::Head() const {
  return "{\"id\":" + JsonQuoted(identity_.id) +
         ",\"type\":\"message\",\"role\":\"assistant\",\"model\":" + JsonQuoted(identity_.model) +
         ",\"content\":[";
}

void MessagesResponse::Begin() {
  if (std::exchange(started_, true)) return;
  pieces_.Add("event: message_start\ndata: {\"type\":\"message_start\",\"message\":" + Head() +
              "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":" +
              UsageJson(prompt_tokens_, 0, 0) + "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n");
}

void MessagesResponse::TakePart(const AnswerPart& part) {
  const bool begins_call = part.kind == Kind::kToolCall;
  const Kind kind = part.kind == Kind::kToolArguments ? Kind::kToolCall : part.kind;
  if (!begins_call && part.text.empty()) return;
  if (begins_call || !open_ || kind != open_kind_) {
    CloseBlock();
    OpenBlock(kind, begins_call ? std::string_view(part.text) : std::string_view());
  }
  if (begins_call) return;
  if (!stream_) {
    blocks_.back().text += part.text;
    return;
  }
  const char* const delta = kind == Kind::kContent ? "{\"type\":\"text_delta\",\"text\":"
                            : kind == Kind::kReasoning
                                ? "{\"type\":\"thinking_delta\",\"thinking\":"
                                : "{\"type\":\"input_json_delta\","
                                  "\"partial_json\":";
  pieces_.Add("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":" +
              std::to_string(num_blocks_ - 1) + ",\"delta\":" + delta);
  pieces_.AddQuoted(part.text);
  pieces_.Add("}}\n\n");
}

void MessagesResponse::OpenBlock(Kind kind, std::string_view name) {
  open_ = true;
  open_kind_ = kind;
  Block block;
  block.kind = kind;
  if (kind == Kind::kToolCall) {
    block.name = name;
    block.call_id = identity_.call_id + (num_calls_ > 0 ? "_" + std::to_string(num_calls_) : "");
    ++num_calls_;
  }
  const int index = num_blocks_++;
  if (!stream_) {
    blocks_.push_back(std::move(block));
    return;
  }
  pieces_.Add("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":" +
              std::to_string(index) + ",\"content_block\":");
  AddBlock(block);
  pieces_.Add("}\n\n");
}

void MessagesResponse::CloseBlock() {
  if (!std::exchange(open_, false) || !stream_) return;
  pieces_.Add("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":" +
              std::to_string(num_blocks_ - 1) + "}\n\n");
}

// `block` lives until it is written, or has no text.
void MessagesResponse::AddBlock(const Block& block) {
  if (block.kind == Kind::kToolCall) {
    pieces_.Add("{\"type\":\"tool_use\",\"id\":" + JsonQuoted(block.call_id) +
                ",\"name\":" + JsonQuoted(block.name) +
                ",\"input\":" + (block.text.empty() ? std::string("{}") : block.text) + "}");
    return;
  }
  const bool text = block.kind == Kind::kContent;
  pieces_.Add(text ? "{\"type\":\"text\",\"text\":" : "{\"type\":\"thinking\",\"thinking\":");
  pieces_.AddQuoted(block.text);
  pieces_.Add(text ? "}" : ",\"signature\":\"\"}");
}

// "stop_reason":...,"stop_sequence":...
void MessagesResponse::AddEnding() {
  const char* const reason = finish_ == FinishReason::kLength ? "max_tokens"
                             : has_stop_sequence_             ? "stop_sequence"
                             : num_calls_ > 0                 ? "tool_use"
                                                              : "end_turn";
  pieces_.Add("\"stop_reason\":\"" + std::string(reason) +
              "\",\"stop_sequence\":" + (has_stop_sequence_ ? JsonQuoted(stop_sequence_) : "null"));
}

void MessagesResponse::OnDone(ResponseDone event) {
  done_ = true;
  status_ = std::move(event.status);
  usage_ = event.usage;
  if (!status_.ok()) {
    if (started_)
      pieces_.Add("event: error\ndata: " + MessagesErrorBody(status_, identity_.request_id) +
                  "\n\n");
    return;
  }
  if (!stream_) return AddBody();
  Begin();
  pieces_.Add("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
  AddEnding();
  pieces_.Add("},\"usage\":" +
              UsageJson(usage_.prompt_tokens, usage_.cached_tokens, usage_.completion_tokens) +
              "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

// A call that was cut, or whose arguments are malformed, has no usable input and is omitted.
void MessagesResponse::AddBody() {
  num_calls_ -= static_cast<int>(std::erase_if(blocks_, [](const Block& block) {
    return block.kind == Kind::kToolCall && !block.text.empty() && !IsJsonObject(block.text);
  }));
  pieces_.Add(Head());
  pieces_.AddItems(blocks_.size(), [this](size_t i, std::string* out) {
    if (i > 0) *out += ',';
    AddBlock(blocks_[i]);
  });
  pieces_.Add("],");
  AddEnding();
  pieces_.Add(",\"usage\":" +
              UsageJson(usage_.prompt_tokens, usage_.cached_tokens, usage_.completion_tokens) +
              "}");
}

}  // namespace diffserve
