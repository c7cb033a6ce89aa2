// SPDX-License-Identifier: Apache-2.0
#include "server/api/attention/reply.h"

#include <utility>

#include "kernels/base/dtype.h"
#include "server/json/base64.h"

namespace diffserve {
namespace {

// A value that needs a second map.
template <typename T>
void AddOfMap2(const char* name, T value, int num_maps, JsonWriter& json) {
  json.Key(name);
  num_maps == 2 ? json.Value(value) : json.Value(nullptr);
}

void AddSlot(const AttentionSlot& slot, int num_maps, JsonWriter& json) {
  json.Begin('{').Add("slot", slot.slot).Add("map1", slot.map1);
  AddOfMap2("map2", slot.map2, num_maps, json);
  json.Add("difference", slot.difference).End('}');
}

}  // namespace

AttentionText::AttentionText(SharedAttentionAnswer answer, Options options)
    : answer_(std::move(answer)), options_(std::move(options)) {
  const AttentionAnswer& all = *answer_;
  JsonWriter json(&pieces_);
  json.Begin('{').Add("object", "attention").Add("id", options_.id);
  json.Add("created", options_.created).Add("model", options_.model).Add("maps", all.num_maps);
  json.Add("num_layers", all.num_layers).Add("num_heads", all.num_heads).Key("tokens");
  json.List(all.tokens.size(), [&all](size_t i, JsonWriter& item) { item.Value(all.tokens[i]); });
  json.Key("token_texts").List(all.token_texts.size(), [&all](size_t i, JsonWriter& item) {
    item.Value(all.token_texts[i]);
  });
  json.Key("data").List(all.items.size(),
                        [this, &all](size_t i, JsonWriter& item) { AddItem(all.items[i], item); });
  json.End('}');
}

void AttentionText::AddItem(const AttentionQueryMaps& item, JsonWriter& json) const {
  const int num_maps = answer_->num_maps;
  json.Begin('{').Add("layer", item.layer).Add("head", item.head).Add("position", item.position);
  json.Add("lambda", item.lambda).Add("entropy1", item.entropy1);
  AddOfMap2("entropy2", item.entropy2, num_maps, json);
  json.Add("cancelled", item.cancelled);
  if (answer_->has_span) {
    json.Key("on_span").Begin('{').Add("map1", item.on_span.map1);
    AddOfMap2("map2", item.on_span.map2, num_maps, json);
    json.Add("difference", item.on_span.difference).End('}');
  }
  if (answer_->top_k) {
    json.Key("top").List(item.top.size(), [&item, num_maps](size_t i, JsonWriter& slot) {
      AddSlot(item.top[i], num_maps, slot);
    });
  } else {
    AddMap("map1", item.map1, json);
    AddMap("map2", item.map2, json);
  }
  json.End('}');
}

// Empty: there is no such map.
void AttentionText::AddMap(const char* name, const std::vector<float>& map,
                           JsonWriter& json) const {
  json.Key(name);
  if (map.empty()) {
    json.Value(nullptr);
  } else if (options_.float16) {
    const auto append = [&map](size_t i, std::string* bytes) {
      const uint16_t bits = FloatToFloat16(map[i]);
      *bytes += {static_cast<char>(bits & 0xff), static_cast<char>(bits >> 8)};
    };
    WriteBase64(map.size(), append, &json);
  } else {
    json.List(map.size(), [&map](size_t i, JsonWriter& item) { item.Value(map[i]); });
  }
}

bool AttentionText::Write(size_t enough, std::string* out) {
  pieces_.Write(enough, out);
  return pieces_.empty();
}

AttentionExchange::AttentionExchange(std::shared_ptr<AttentionMapsCall> call,
                                     std::shared_ptr<PendingAnswer> answer,
                                     AttentionText::Options options, ExchangeHooks hooks)
    : call_(std::move(call)),
      pending_answer_(std::move(answer)),
      options_(std::move(options)),
      hooks_(std::move(hooks)) {}

AttentionExchange::~AttentionExchange() {
  call_->Abandon();
  hooks_.on_end(outcome_);
}

std::optional<HttpReply> AttentionExchange::Reply() {
  std::optional<Result<SharedAttentionAnswer>> answer = pending_answer_->Take();
  if (!answer) return std::nullopt;
  HttpReply reply;
  if (!answer->ok()) {
    outcome_.status = answer->status();
    reply = hooks_.error_reply(outcome_.status);
  } else {
    text_.emplace(std::move(*answer).value(), options_);
    reply.streams = !text_->Write(kTurnBytes, &pending_);
    if (!reply.streams) {
      reply.body = std::exchange(pending_, {});
      outcome_.status = Status();
    }
  }
  outcome_.http_status = reply.status;
  return reply;
}

bool AttentionExchange::Frames(std::string* bytes) {
  *bytes += std::exchange(pending_, {});
  const bool whole = text_->Write(kTurnBytes, bytes);
  if (whole) outcome_.status = Status();
  return whole;
}

}  // namespace diffserve
