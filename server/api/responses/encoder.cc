// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses/encoder.h"

#include <algorithm>
#include <utility>

#include "server/api/reply/reply_members.h"
#include "server/api/responses/request.h"
#include "server/serving/status_codes.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

using Kind = AnswerPart::Kind;

const char* NameOf(ResponseState state) {
  switch (state) {
    case ResponseState::kInProgress:
      return "in_progress";
    case ResponseState::kCompleted:
      return "completed";
    case ResponseState::kIncomplete:
      return "incomplete";
    case ResponseState::kFailed:
      return "failed";
    case ResponseState::kCancelled:
      return "cancelled";
  }
  return "failed";
}

const char* FailureCode(StatusCode code) {
  switch (code) {
    case StatusCode::kContextExceeded:
      return "context_length_exceeded";
    case StatusCode::kResourceExhausted:
      return "rate_limit_exceeded";
    default:
      return "server_error";
  }
}

const char* PrefixOf(Kind kind) {
  return kind == Kind::kContent ? "msg_" : kind == Kind::kReasoning ? "rs_" : "fc_";
}

// The name of an item's content events.
const char* ContentName(Kind kind) {
  return kind == Kind::kContent     ? "output_text"
         : kind == Kind::kReasoning ? "reasoning_text"
                                    : "function_call_arguments";
}

// Both live until it is written. If one is null, the list is empty.
void AddLogprobs(const PieceTokens* tokens, const LogprobForm* form, JsonWriter& json) {
  json.Key("logprobs");
  if (tokens == nullptr || form == nullptr)
    json.Begin('[').End(']');
  else
    WriteChatLogprobs({tokens->tokens, tokens->opening_tokens}, *form, &json);
}

// `opened`: the item is new and has no text yet.
void AddContentPart(const ResponseItem& item, bool opened, const LogprobForm* form,
                    JsonWriter& json) {
  json.Begin('{').Add("type", ContentName(item.kind)).Key("text");
  json.LongText(opened ? std::string_view() : std::string_view(item.text));
  if (item.kind == Kind::kContent) {
    json.Key("annotations").Begin('[').End(']');
    AddLogprobs(&item.tokens, opened ? nullptr : form, json);
  }
  json.End('}');
}

// `opened`: the item is new and has no content yet.
void AddItem(const ResponseItem& item, bool opened, const LogprobForm* form, JsonWriter& json) {
  json.Begin('{').Add("id", item.id);
  json.Add("status", opened ? "in_progress" : item.complete ? "completed" : "incomplete");
  if (item.kind == Kind::kToolCall) {
    json.Add("type", "function_call").Add("call_id", item.call_id).Add("name", item.name);
    json.Key("arguments").LongText(opened ? std::string_view() : std::string_view(item.text));
  } else {
    if (item.kind == Kind::kContent)
      json.Add("type", "message").Add("role", "assistant");
    else
      json.Add("type", "reasoning").Key("summary").Begin('[').End(']');
    json.Key("content").Begin('[');
    if (!opened) AddContentPart(item, /*opened=*/false, form, json);
    json.End(']');
  }
  json.End('}');
}

void AddResponsesUsage(const ResponseObject& object, JsonWriter& json) {
  const Usage& usage = object.usage;
  json.Begin('{').Add("input_tokens", usage.prompt_tokens).Key("input_tokens_details").Begin('{');
  json.Add("cached_tokens", usage.cached_tokens).Add("cache_write_tokens", 0).End('}');
  json.Add("output_tokens", usage.completion_tokens).Key("output_tokens_details").Begin('{');
  json.Add("reasoning_tokens", object.reasoning_tokens).End('}');
  json.Add("total_tokens", usage.prompt_tokens + usage.completion_tokens).End('}');
}

}  // namespace

size_t ResponseObject::HeldBytes() const {
  size_t bytes = sizeof(*this) + id.capacity() + model.capacity() + echo->capacity();
  for (const ResponseItem& item : items) {
    bytes += sizeof(item) + item.id.capacity() + item.text.capacity() + item.name.capacity() +
             item.call_id.capacity() + item.tokens.HeldBytes();
  }
  return bytes;
}

std::string ResponseIdOf(std::string_view item_id) {
  const size_t begin = std::min(item_id.find('_'), item_id.size());
  return "resp" + std::string(item_id.substr(begin, item_id.rfind('_') - begin));
}

std::optional<ResponseItem> FindItem(const ResponseObject& object, std::string_view id) {
  const auto found = std::ranges::find(object.items, id, &ResponseItem::id);
  return found == object.items.end() ? std::nullopt : std::optional<ResponseItem>(*found);
}

void AddResponseObject(const ResponseObject& object, JsonWriter* json) {
  const bool ended = object.state != ResponseState::kInProgress;
  json->Begin('{').Add("id", object.id).Add("object", "response");
  json->Add("created_at", object.created_at).Add("status", NameOf(object.state));
  json->Add("model", object.model).Key("error");
  if (object.state == ResponseState::kFailed) {
    json->Begin('{').Add("code", FailureCode(object.error.code()));
    json->Add("message", object.error.message()).End('}');
  } else {
    json->Value(nullptr);
  }
  json->Key("incomplete_details");
  if (object.state == ResponseState::kIncomplete)
    json->Begin('{').Add("reason", "max_output_tokens").End('}');
  else
    json->Value(nullptr);
  const size_t items = ended ? object.items.size() : 0;  // of a stream, they have their own events
  json->Key("output").List(items, [&object](size_t i, JsonWriter& item) {
    AddItem(object.items[i], /*opened=*/false, object.logprobs.get(), item);
  });
  json->Key("usage");
  if (ended)
    AddResponsesUsage(object, *json);
  else
    json->Value(nullptr);
  json->Items(1, [echo = object.echo](size_t, JsonWriter& members) { members.Members(*echo); });
  json->End('}');
}

ResponsesResponse::ResponsesResponse(bool stream, ResponseObject object, AnswerSplitter split,
                                     Hooks hooks, std::optional<TextTokens> tokens)
    : stream_(stream),
      split_(std::move(split)),
      hooks_(std::move(hooks)),
      tokens_(std::move(tokens)),
      object_(std::make_shared<ResponseObject>(std::move(object))) {}

ResponsesResponse::~ResponsesResponse() {
  if (!told_) hooks_.drop();
}

template <typename Write>
void ResponsesResponse::AddEvent(const std::string& type, AnswerState* answer, const Write& write) {
  answer->AddEvent(type, [&](JsonWriter& json) {
    json.Add("type", type).Add("sequence_number", sequence_number_++);
    write(json);
  });
}

void ResponsesResponse::AddPlace(bool of_content, JsonWriter& json) const {
  json.Add("item_id", item().id).Add("output_index", object_->items.size() - 1);
  if (of_content) json.Add("content_index", 0);
}

void ResponsesResponse::AddObjectEvent(const char* type, AnswerState* answer) {
  AddEvent(type, answer, [this](JsonWriter& json) {
    json.Key("response");
    AddResponseObject(*object_, &json);
  });
}

void ResponsesResponse::Begin(AnswerState* answer) {
  if (std::exchange(answer->started, true)) return;
  AddObjectEvent("response.created", answer);
  AddObjectEvent("response.in_progress", answer);
}

void ResponsesResponse::OnDelta(ResponseDelta event, AnswerState* answer) {
  parts_.clear();
  split_.read(event, &parts_);
  if (stream_) Begin(answer);
  const auto num_tokens = static_cast<int64_t>(event.tokens.size());
  if (tokens_) tokens_->Add(std::move(event.tokens), event.opening_tokens);
  for (const AnswerPart& part : parts_) TakePart(part, answer);
  // A token counts for the kind of part that it produced.
  if (!object_->items.empty() && item().kind == Kind::kReasoning)
    object_->reasoning_tokens += num_tokens;
  if (tokens_ && !parts_.empty() && item().kind == Kind::kToolCall) tokens_->Clear();
  if (event.finish != FinishReason::kNone) finish_ = event.finish;
}

void ResponsesResponse::TakePart(const AnswerPart& part, AnswerState* answer) {
  const bool begins_call = part.kind == Kind::kToolCall;
  const Kind kind = part.kind == Kind::kToolArguments ? Kind::kToolCall : part.kind;
  if (!begins_call && part.text.empty()) return;
  if (begins_call || !open_ || kind != item().kind) {
    CloseItem(/*complete=*/true, answer);
    OpenItem(kind, begins_call ? std::string_view(part.text) : std::string_view(), answer);
  }
  if (begins_call) return;
  item().text += part.text;
  std::shared_ptr<const PieceTokens> tokens;
  if (tokens_ && kind != Kind::kToolCall)
    tokens = std::make_shared<const PieceTokens>(tokens_->Take(part.text));
  if (tokens != nullptr && kind == Kind::kContent) item().tokens.Append(*tokens);
  if (!stream_) return;
  AddEvent("response." + std::string(ContentName(kind)) + ".delta", answer, [&](JsonWriter& json) {
    AddPlace(/*of_content=*/kind != Kind::kToolCall, json);
    if (kind == Kind::kContent) AddLogprobs(tokens.get(), object_->logprobs.get(), json);
    json.Key("delta").LongText(part.text);
    if (tokens != nullptr) json.Then([tokens] {});  // until then, they live
  });
}

void ResponsesResponse::OpenItem(Kind kind, std::string_view name, AnswerState* answer) {
  open_ = true;
  const size_t index = object_->items.size();
  const std::string id = object_->id.substr(object_->id.find('_') + 1) + "_" +
                         std::to_string(index);
  ResponseItem& opened = object_->items.emplace_back();
  opened.kind = kind;
  opened.id = PrefixOf(kind) + id;
  if (kind == Kind::kToolCall) {
    opened.call_id = "call_" + id;
    opened.name = name;
  }
  if (!stream_) return;
  AddEvent("response.output_item.added", answer, [&](JsonWriter& json) {
    json.Add("output_index", index).Key("item");
    AddItem(opened, /*opened=*/true, nullptr, json);
  });
  if (kind == Kind::kToolCall) return;
  AddEvent("response.content_part.added", answer, [&](JsonWriter& json) {
    AddPlace(/*of_content=*/true, json);
    json.Key("part");
    AddContentPart(opened, /*opened=*/true, nullptr, json);
  });
}

// Events hold copies of the text: the same parts may open another item, which moves the vector of
// items.
void ResponsesResponse::CloseItem(bool complete, AnswerState* answer) {
  if (!std::exchange(open_, false)) return;
  item().complete = complete && (item().kind != Kind::kToolCall || IsJsonObject(item().text));
  if (!stream_) return;
  const auto closed = std::make_shared<const ResponseItem>(item());
  const bool call = closed->kind == Kind::kToolCall;
  AddEvent("response." + std::string(ContentName(closed->kind)) + ".done", answer,
           [&](JsonWriter& json) {
             AddPlace(/*of_content=*/!call, json);
             if (call) json.Add("name", closed->name);
             if (closed->kind == Kind::kContent)
               AddLogprobs(&closed->tokens, object_->logprobs.get(), json);
             json.Key(call ? "arguments" : "text").LongText(closed->text);
           });
  if (!call) {
    AddEvent("response.content_part.done", answer, [&](JsonWriter& json) {
      AddPlace(/*of_content=*/true, json);
      json.Key("part");
      AddContentPart(*closed, /*opened=*/false, object_->logprobs.get(), json);
    });
  }
  AddEvent("response.output_item.done", answer, [&](JsonWriter& json) {
    json.Add("output_index", object_->items.size() - 1).Key("item");
    AddItem(*closed, /*opened=*/false, object_->logprobs.get(), json);
    json.Then([closed] {});  // until then, its text lives
  });
}

void ResponsesResponse::OnDone(AnswerState* answer) {
  const Status& status = answer->status;
  object_->usage = answer->usage;
  const bool cancelled = status.code() == StatusCode::kCancelled;
  const bool cut = finish_ == FinishReason::kLength;
  // For a too long prompt, OpenAI's service begins a stream, and some clients recognise the
  // overflow only by its events. Any other failure before the first token is an HTTP status.
  if (stream_ && status.code() == StatusCode::kContextExceeded) {
    Begin(answer);
    AddEvent("error", answer, [&](JsonWriter& json) { AddOpenAiError(status, &json); });
  }
  if (status.ok()) {
    if (stream_) Begin(answer);
    if (object_->items.empty()) OpenItem(Kind::kContent, {}, answer);
    object_->state = cut ? ResponseState::kIncomplete : ResponseState::kCompleted;
  } else {
    object_->state = cancelled ? ResponseState::kCancelled : ResponseState::kFailed;
    object_->error = status;
  }
  // On failure, the failure event replaces the item's end.
  if (status.ok())
    CloseItem(!cut, answer);
  else
    open_ = false;
  if (!status.ok() && !cancelled && !answer->started) return;  // an HTTP status; the hook drops it
  if (stream_ && (status.ok() || answer->started)) {
    AddObjectEvent(!status.ok() ? "response.failed"
                   : cut        ? "response.incomplete"
                                : "response.completed",
                   answer);
  } else if (status.ok()) {
    JsonWriter json(&answer->pieces);
    AddResponseObject(*object_, &json);
  }
  told_ = true;
  hooks_.finish(object_);
}

std::string InputItemsBody(const ResponseInput& input, bool ascending, size_t limit,
                           std::string_view after) {
  std::vector<size_t> order;
  for (size_t i = 0; i < input.items.size(); ++i)
    order.push_back(ascending ? i : input.items.size() - 1 - i);
  const auto found = std::ranges::find_if(order,
                                          [&](size_t i) { return input.item_ids[i] == after; });
  if (found != order.end()) order.erase(order.begin(), found + 1);
  const bool more = order.size() > limit;
  order.resize(std::min(order.size(), limit));
  return JsonObjectOf([&](JsonWriter& json) {
    json.Add("object", "list").Key("data").Begin('[');
    for (const size_t i : order) json.Json(input.items[i]);
    json.End(']');
    const auto id = [&](const char* name, size_t i) {
      json.Key(name);
      order.empty() ? json.Value(nullptr) : json.Value(input.item_ids[order[i]]);
    };
    id("first_id", 0);
    id("last_id", order.size() - 1);
    json.Add("has_more", more);
  });
}

}  // namespace diffserve
