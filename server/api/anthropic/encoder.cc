// SPDX-License-Identifier: Apache-2.0
#include "server/api/anthropic/encoder.h"

#include <utility>
#include <variant>

#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

using Kind = AnswerPart::Kind;

// Clients take a thinking block without signature for one that was cut off. This server signs
// nothing and checks nothing: the same text is in every block.
constexpr char kThinkingSignature[] = "ZGlmZnNlcnZlIGRvZXMgbm90IHNpZ24gdGhpbmtpbmc=";

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
    case StatusCode::kDeviceLost:
      return "overloaded_error";
    case StatusCode::kDeadlineExceeded:
      return "timeout_error";
    default:
      return "api_error";
  }
}

void AddMessagesUsage(int64_t prompt, int64_t cached, int64_t output, JsonWriter& json) {
  json.Key("usage").Begin('{').Add("input_tokens", prompt - cached);
  json.Add("cache_creation_input_tokens", 0).Add("cache_read_input_tokens", cached);
  json.Add("output_tokens", output).End('}');
}

}  // namespace

std::string MessagesErrorBody(const Status& status, std::string_view request_id) {
  return JsonObjectOf([&](JsonWriter& json) {
    json.Add("type", "error").Key("error").Begin('{').Add("type", ErrorType(status.code()));
    json.Add("message", status.message()).End('}');
    json.Add("request_id", request_id);
  });
}

void MessagesResponse::OnDelta(ResponseDelta event, AnswerState* answer) {
  const bool ends = event.finish != FinishReason::kNone;
  parts_.clear();
  split_.read(event, &parts_);
  if (stream_) Begin(answer);
  for (const AnswerPart& part : parts_) TakePart(part, answer);
  if (!ends) return;
  CloseBlock(answer);
  finish_ = event.finish;
  if (auto* text = std::get_if<std::string>(&event.stop_reason)) stop_sequence_ = std::move(*text);
}

// The members of a message before its content. The cached tokens are reported at the end.
void MessagesResponse::AddHead(JsonWriter& json) const {
  json.Add("id", identity_.id).Add("type", "message").Add("role", "assistant");
  json.Add("model", identity_.model).Key("content");
}

void MessagesResponse::Begin(AnswerState* answer) const {
  if (std::exchange(answer->started, true)) return;
  answer->AddEvent("message_start", [&](JsonWriter& json) {
    json.Add("type", "message_start").Key("message").Begin('{');
    AddHead(json);
    json.Begin('[').End(']').Add("stop_reason", nullptr).Add("stop_sequence", nullptr);
    AddMessagesUsage(answer->usage.prompt_tokens, 0, 0, json);
    json.End('}');
  });
  answer->AddEvent("ping", [](JsonWriter& json) { json.Add("type", "ping"); });
}

void MessagesResponse::TakePart(const AnswerPart& part, AnswerState* answer) {
  const bool begins_call = part.kind == Kind::kToolCall;
  const Kind kind = part.kind == Kind::kToolArguments ? Kind::kToolCall : part.kind;
  if (!begins_call && part.text.empty()) return;
  if (begins_call || !open_ || kind != open_kind_) {
    CloseBlock(answer);
    OpenBlock(kind, begins_call ? std::string_view(part.text) : std::string_view(), answer);
  }
  if (begins_call || (kind == Kind::kReasoning && identity_.omits_thinking)) return;
  if (!stream_) {
    blocks_.back().text += part.text;
    return;
  }
  using Names = std::pair<const char*, const char*>;
  const auto [type, member] = kind == Kind::kContent ? Names("text_delta", "text")
                              : kind == Kind::kReasoning
                                  ? Names("thinking_delta", "thinking")
                                  : Names("input_json_delta", "partial_json");
  AddDelta(type, answer, [&](JsonWriter& json) { json.Key(member).LongText(part.text); });
}

template <typename Write>
void MessagesResponse::AddDelta(const char* type, AnswerState* answer, const Write& write) const {
  answer->AddEvent("content_block_delta", [&](JsonWriter& json) {
    json.Add("type", "content_block_delta").Add("index", num_blocks_ - 1).Key("delta");
    json.Begin('{').Add("type", type);
    write(json);
    json.End('}');
  });
}

void MessagesResponse::OpenBlock(Kind kind, std::string_view name, AnswerState* answer) {
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
  if (!stream_) return blocks_.push_back(std::move(block));
  answer->AddEvent("content_block_start", [&](JsonWriter& json) {
    json.Add("type", "content_block_start").Add("index", index).Key("content_block");
    AddBlock(block, json);
  });
}

void MessagesResponse::CloseBlock(AnswerState* answer) {
  if (!std::exchange(open_, false) || !stream_) return;
  if (open_kind_ == Kind::kReasoning) {
    AddDelta("signature_delta", answer,
             [](JsonWriter& json) { json.Add("signature", kThinkingSignature); });
  }
  answer->AddEvent("content_block_stop", [&](JsonWriter& json) {
    json.Add("type", "content_block_stop").Add("index", num_blocks_ - 1);
  });
}

// `block` lives until it is written, or has no text.
void MessagesResponse::AddBlock(const Block& block, JsonWriter& json) const {
  json.Begin('{');
  if (block.kind == Kind::kToolCall) {
    json.Add("type", "tool_use").Add("id", block.call_id).Add("name", block.name).Key("input");
    block.text.empty() ? json.Begin('{').End('}') : json.Json(block.text);
  } else if (block.kind == Kind::kContent) {
    json.Add("type", "text").Key("text").LongText(block.text);
  } else {
    json.Add("type", "thinking").Key("thinking").LongText(block.text);
    json.Add("signature", stream_ ? "" : kThinkingSignature);  // a stream sends it at the end
  }
  json.End('}');
}

void MessagesResponse::AddEnding(JsonWriter& json) const {
  json.Add("stop_reason", finish_ == FinishReason::kLength ? "max_tokens"
                          : stop_sequence_                 ? "stop_sequence"
                          : num_calls_ > 0                 ? "tool_use"
                                                           : "end_turn");
  json.Add("stop_sequence", stop_sequence_);
}

void MessagesResponse::OnDone(AnswerState* answer) {
  const Usage& usage = answer->usage;
  if (!answer->status.ok()) {
    if (answer->started)
      answer->AddEvent("error", MessagesErrorBody(answer->status, identity_.request_id));
    return;
  }
  if (!stream_) return AddBody(usage, JsonWriter(&answer->pieces));
  Begin(answer);
  answer->AddEvent("message_delta", [&](JsonWriter& json) {
    json.Add("type", "message_delta").Key("delta").Begin('{');
    AddEnding(json);
    json.End('}');
    AddMessagesUsage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, json);
  });
  answer->AddEvent("message_stop", [](JsonWriter& json) { json.Add("type", "message_stop"); });
}

// A call that was cut, or whose arguments are malformed, has no usable input and is omitted.
void MessagesResponse::AddBody(const Usage& usage, JsonWriter json) {
  num_calls_ -= static_cast<int>(std::erase_if(blocks_, [](const Block& block) {
    return block.kind == Kind::kToolCall && !block.text.empty() && !IsJsonObject(block.text);
  }));
  json.Begin('{');
  AddHead(json);
  json.List(blocks_.size(), [this](size_t i, JsonWriter& item) { AddBlock(blocks_[i], item); });
  AddEnding(json);
  AddMessagesUsage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, json);
  json.End('}');
}

}  // namespace diffserve
