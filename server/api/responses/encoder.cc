// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses/encoder.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/base/check.h"
#include "server/api/json/json.h"
#include "server/api/openai/encoder.h"
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

// The name of an item's content events: output_text or reasoning_text.
const char* ContentName(Kind kind) {
  return kind == Kind::kContent ? "output_text" : "reasoning_text";
}

void AddContentPart(const ResponseItem& item, bool with_text, TextPieces* pieces) {
  pieces->Add("{\"type\":\"" + std::string(ContentName(item.kind)) + "\",\"text\":");
  pieces->AddQuoted(with_text ? std::string_view(item.text) : std::string_view());
  pieces->Add(item.kind == Kind::kContent ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

// `opened`: the item is new and has no content yet.
void AddItem(const ResponseItem& item, bool opened, TextPieces* pieces) {
  const char* const status = opened ? "in_progress" : item.complete ? "completed" : "incomplete";
  std::string head = "{\"id\":" + JsonQuoted(item.id) + ",\"status\":\"" + status + "\",\"type\":";
  if (item.kind == Kind::kToolCall) {
    pieces->Add(head + "\"function_call\",\"call_id\":" + JsonQuoted(item.call_id) +
                ",\"name\":" + JsonQuoted(item.name) + ",\"arguments\":");
    pieces->AddQuoted(opened ? std::string_view() : std::string_view(item.text));
    pieces->Add("}");
    return;
  }
  pieces->Add(head +
              (item.kind == Kind::kContent ? "\"message\",\"role\":\"assistant\""
                                           : "\"reasoning\",\"summary\":[]") +
              ",\"content\":[");
  if (!opened) AddContentPart(item, /*with_text=*/true, pieces);
  pieces->Add("]}");
}

std::string UsageJson(const ResponseObject& object) {
  const Usage& usage = object.usage;
  return "{\"input_tokens\":" + std::to_string(usage.prompt_tokens) +
         ",\"input_tokens_details\":{\"cached_tokens\":" + std::to_string(usage.cached_tokens) +
         ",\"cache_write_tokens\":0},\"output_tokens\":" + std::to_string(usage.completion_tokens) +
         ",\"output_tokens_details\":{\"reasoning_tokens\":" +
         std::to_string(object.reasoning_tokens) +
         "},\"total_tokens\":" + std::to_string(usage.prompt_tokens + usage.completion_tokens) +
         "}";
}

}  // namespace

size_t ResponseObject::HeldBytes() const {
  size_t bytes = sizeof(*this) + id.capacity() + model.capacity() + echo->capacity();
  for (const ResponseItem& item : items) {
    bytes += sizeof(item) + item.id.capacity() + item.text.capacity() + item.name.capacity() +
             item.call_id.capacity();
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

void AddResponseObject(const ResponseObject& object, TextPieces* pieces) {
  const bool ended = object.state != ResponseState::kInProgress;
  pieces->Add("{\"id\":" + JsonQuoted(object.id) + ",\"object\":\"response\",\"created_at\":" +
              std::to_string(object.created_at) + ",\"status\":\"" + NameOf(object.state) +
              "\",\"model\":" + JsonQuoted(object.model) + ",\"error\":");
  if (object.state == ResponseState::kFailed) {
    pieces->Add("{\"code\":\"" + std::string(FailureCode(object.error.code())) +
                "\",\"message\":" + JsonQuoted(object.error.message()) + "}");
  } else {
    pieces->Add("null");
  }
  pieces->Add(",\"incomplete_details\":");
  pieces->Add(object.state == ResponseState::kIncomplete ? "{\"reason\":\"max_output_tokens\"}"
                                                         : "null");
  pieces->Add(",\"output\":[");
  const bool streams = !ended;  // its items have events of their own
  pieces->AddItems(streams ? 0 : object.items.size(),
                   [&object, pieces](size_t i, std::string* out) {
                     if (i > 0) *out += ',';
                     AddItem(object.items[i], /*opened=*/false, pieces);
                   });
  pieces->Add("],\"usage\":" + (ended ? UsageJson(object) : "null") + ",");
  pieces->AddItems(1, [echo = object.echo](size_t, std::string* out) { *out += *echo; });
  pieces->Add("}");
}

ResponsesResponse::ResponsesResponse(bool stream, ResponseObject object, AnswerSplitter split,
                                     Hooks hooks)
    : stream_(stream),
      split_(std::move(split)),
      hooks_(std::move(hooks)),
      object_(std::make_shared<ResponseObject>(std::move(object))) {}

ResponsesResponse::~ResponsesResponse() {
  if (!told_) hooks_.drop();
}

void ResponsesResponse::Take(ResponseEvent event) {
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

bool ResponsesResponse::Write(size_t enough, std::string* out) {
  pieces_.Write(enough, out);
  return written();
}

void ResponsesResponse::AddEvent(std::string_view type) {
  pieces_.Add("event: " + std::string(type) + "\ndata: {\"type\":\"" + std::string(type) +
              "\",\"sequence_number\":" + std::to_string(sequence_number_++));
}

void ResponsesResponse::AddPlace(bool of_content) {
  pieces_.Add(",\"item_id\":" + JsonQuoted(item().id) +
              ",\"output_index\":" + std::to_string(object_->items.size() - 1) +
              (of_content ? ",\"content_index\":0" : ""));
}

void ResponsesResponse::AddObjectEvent(std::string_view type) {
  AddEvent(type);
  pieces_.Add(",\"response\":");
  AddResponseObject(*object_, &pieces_);
  pieces_.Add("}\n\n");
}

void ResponsesResponse::Begin() {
  if (std::exchange(started_, true)) return;
  AddObjectEvent("response.created");
  AddObjectEvent("response.in_progress");
}

void ResponsesResponse::OnDelta(ResponseDelta event) {
  const auto tokens = static_cast<int64_t>(event.tokens.size());
  const bool ends = event.finish != FinishReason::kNone;
  tokens_ += tokens;
  parts_.clear();
  split_.read(event, &parts_);
  if (stream_) Begin();
  for (const AnswerPart& part : parts_) TakePart(part);
  // A token counts for the kind of part that it produced.
  if (!object_->items.empty() && item().kind == Kind::kReasoning)
    object_->reasoning_tokens += tokens;
  if (ends) finish_ = event.finish;
}

void ResponsesResponse::TakePart(const AnswerPart& part) {
  const bool begins_call = part.kind == Kind::kToolCall;
  const Kind kind = part.kind == Kind::kToolArguments ? Kind::kToolCall : part.kind;
  if (!begins_call && part.text.empty()) return;
  if (begins_call || !open_ || kind != item().kind) {
    CloseItem(/*complete=*/true);
    OpenItem(kind, begins_call ? std::string_view(part.text) : std::string_view());
  }
  if (begins_call) return;
  item().text += part.text;
  if (!stream_) return;
  if (kind == Kind::kToolCall)
    AddEvent("response.function_call_arguments.delta");
  else
    AddEvent("response." + std::string(ContentName(kind)) + ".delta");
  AddPlace(/*of_content=*/kind != Kind::kToolCall);
  pieces_.Add(kind == Kind::kContent ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":");
  pieces_.AddQuoted(part.text);
  pieces_.Add("}\n\n");
}

void ResponsesResponse::OpenItem(Kind kind, std::string_view name) {
  open_ = true;
  const std::string id = object_->id.substr(object_->id.find('_') + 1) + "_" +
                         std::to_string(object_->items.size());
  ResponseItem& opened = object_->items.emplace_back();
  opened.kind = kind;
  opened.id = PrefixOf(kind) + id;
  if (kind == Kind::kToolCall) {
    opened.call_id = "call_" + id;
    opened.name = name;
  }
  if (!stream_) return;
  AddEvent("response.output_item.added");
  pieces_.Add(",\"output_index\":" + std::to_string(object_->items.size() - 1) + ",\"item\":");
  AddItem(opened, /*opened=*/true, &pieces_);
  pieces_.Add("}\n\n");
  if (kind == Kind::kToolCall) return;
  AddEvent("response.content_part.added");
  AddPlace(/*of_content=*/true);
  pieces_.Add(",\"part\":");
  AddContentPart(opened, /*with_text=*/false, &pieces_);
  pieces_.Add("}\n\n");
}

// Events hold copies of the text: the same parts may open another item, which moves the vector of
// items.
void ResponsesResponse::CloseItem(bool complete) {
  if (!std::exchange(open_, false)) return;
  item().complete = complete && (item().kind != Kind::kToolCall || IsJsonObject(item().text));
  if (!stream_) return;
  const auto closed = std::make_shared<const ResponseItem>(item());
  const bool call = closed->kind == Kind::kToolCall;
  AddEvent(call ? "response.function_call_arguments.done"
                : "response." + std::string(ContentName(closed->kind)) + ".done");
  AddPlace(/*of_content=*/!call);
  if (call) pieces_.Add(",\"name\":" + JsonQuoted(closed->name));
  pieces_.Add(closed->kind == Kind::kContent ? ",\"logprobs\":[]" : "");
  pieces_.Add(call ? ",\"arguments\":" : ",\"text\":");
  pieces_.AddQuoted(closed->text);
  pieces_.Add("}\n\n");
  if (!call) {
    AddEvent("response.content_part.done");
    AddPlace(/*of_content=*/true);
    pieces_.Add(",\"part\":");
    AddContentPart(*closed, /*with_text=*/true, &pieces_);
    pieces_.Add("}\n\n");
  }
  AddEvent("response.output_item.done");
  pieces_.Add(",\"output_index\":" + std::to_string(object_->items.size() - 1) + ",\"item\":");
  AddItem(*closed, /*opened=*/false, &pieces_);
  pieces_.Add("}");
  pieces_.AddItems(1, [closed](size_t, std::string* out) { *out += "\n\n"; });
}

void ResponsesResponse::OnDone(ResponseDone event) {
  done_ = true;
  status_ = std::move(event.status);
  object_->usage = event.usage;
  const bool cancelled = status_.code() == StatusCode::kCancelled;
  const bool cut = finish_ == FinishReason::kLength;
  // For a too long prompt, OpenAI's service begins a stream, and some clients recognise the
  // overflow only by its events. Any other failure before the first token is an HTTP status.
  if (stream_ && status_.code() == StatusCode::kContextExceeded) {
    Begin();
    AddEvent("error");
    pieces_.Add("," + OpenAiErrorBody(InResponsesNames(status_)).substr(1) + "\n\n");
  }
  if (status_.ok()) {
    if (stream_) Begin();
    if (object_->items.empty()) OpenItem(Kind::kContent, {});
    object_->state = cut ? ResponseState::kIncomplete : ResponseState::kCompleted;
  } else {
    object_->state = cancelled ? ResponseState::kCancelled : ResponseState::kFailed;
    object_->error = status_;
  }
  // On failure, the failure event replaces the item's end.
  if (status_.ok())
    CloseItem(!cut);
  else
    open_ = false;
  if (!status_.ok() && !cancelled && !started_) return;  // an HTTP status; the hook drops it
  if (status_.ok() || started_) {
    if (stream_)
      AddObjectEvent(!status_.ok() ? "response.failed"
                     : cut         ? "response.incomplete"
                                   : "response.completed");
    else if (status_.ok())
      AddResponseObject(*object_, &pieces_);
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
  std::string data;
  for (const size_t i : order) data += (data.empty() ? "" : ",") + input.items[i];
  const auto id = [&](bool first) {
    if (order.empty()) return std::string("null");
    return JsonQuoted(input.item_ids[first ? order.front() : order.back()]);
  };
  return "{\"object\":\"list\",\"data\":[" + data + "],\"first_id\":" + id(true) +
         ",\"last_id\":" + id(false) + ",\"has_more\":" + (more ? "true" : "false") + "}";
}

std::string DeletedResponseBody(std::string_view id) {
  return "{\"id\":" + JsonQuoted(id) + ",\"object\":\"response\",\"deleted\":true}";
}

}  // namespace diffserve
