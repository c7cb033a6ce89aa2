// SPDX-License-Identifier: Apache-2.0
#include "server/api/attention/reply.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>

#include "kernels/base/dtype.h"
#include "server/api/json/base64.h"

namespace diffserve {
namespace {

constexpr size_t kNumbersPerMapPiece = 3 << 9;  // numbers per piece: a whole number of base64
                                                // groups

void AppendMember(const char* name, double value, std::string* out) {
  *out += std::string(",\"") + name + "\":";
  AppendJsonNumber(value, out);
}

// Members that need a second map.
void AppendOfMap2(const char* name, double value, int num_maps, std::string* out) {
  if (num_maps == 2) return AppendMember(name, value, out);
  *out += std::string(",\"") + name + "\":null";
}

void AppendFloat16s(std::span<const float> numbers, std::string* out) {
  std::string bytes;
  for (float number : numbers) {
    const uint16_t bits = FloatToFloat16(number);
    bytes += static_cast<char>(bits & 0xff);
    bytes += static_cast<char>(bits >> 8);
  }
  AppendBase64(bytes, out);
}

void AppendSlot(const AttentionSlot& slot, int num_maps, std::string* out) {
  *out += "{\"slot\":" + std::to_string(slot.slot) + ",\"map1\":";
  AppendJsonFloat(slot.map1, out);
  *out += ",\"map2\":";
  if (num_maps == 2)
    AppendJsonFloat(slot.map2, out);
  else
    *out += "null";
  *out += ",\"difference\":";
  AppendJsonFloat(slot.difference, out);
  *out += '}';
}

}  // namespace

AttentionText::AttentionText(SharedAttentionAnswer answer, Options options)
    : answer_(std::move(answer)), options_(std::move(options)) {
  const AttentionAnswer& all = *answer_;
  pieces_.Add("{\"object\":\"attention\",\"id\":");
  pieces_.AddQuoted(options_.id);
  pieces_.Add(",\"created\":" + std::to_string(options_.created) + ",\"model\":");
  pieces_.AddQuoted(options_.model);
  pieces_.Add(",\"maps\":" + std::to_string(all.num_maps) +
              ",\"num_layers\":" + std::to_string(all.num_layers) +
              ",\"num_heads\":" + std::to_string(all.num_heads) + ",\"tokens\":");
  pieces_.AddList(all.tokens.size(),
                  [&all](size_t i, std::string* out) { *out += std::to_string(all.tokens[i]); });
  pieces_.Add(",\"token_texts\":");
  pieces_.AddList(all.token_texts.size(), [&all](size_t i, std::string* out) {
    AppendJsonString(all.token_texts[i], out);
  });
  pieces_.Add(",\"data\":");
  pieces_.AddList(all.items.size(),
                  [this, &all](size_t i, std::string*) { AddItem(all.items[i]); });
  pieces_.Add("}");
}

void AttentionText::AddItem(const AttentionQueryMaps& item) {
  const int num_maps = answer_->num_maps;
  std::string text = "{\"layer\":" + std::to_string(item.layer) +
                     ",\"head\":" + std::to_string(item.head) +
                     ",\"position\":" + std::to_string(item.position);
  AppendMember("lambda", item.lambda, &text);
  AppendMember("entropy1", item.entropy1, &text);
  AppendOfMap2("entropy2", item.entropy2, num_maps, &text);
  AppendMember("cancelled", item.cancelled, &text);
  if (answer_->has_span) {
    text += ",\"on_span\":{\"map1\":";
    AppendJsonNumber(item.on_span.map1, &text);
    AppendOfMap2("map2", item.on_span.map2, num_maps, &text);
    AppendMember("difference", item.on_span.difference, &text);
    text += '}';
  }
  pieces_.Add(text);
  if (answer_->top_k) {
    pieces_.Add(",\"top\":");
    pieces_.AddList(item.top.size(), [&item, num_maps](size_t i, std::string* out) {
      AppendSlot(item.top[i], num_maps, out);
    });
  } else {
    AddMap("map1", item.map1);
    AddMap("map2", item.map2);
  }
  pieces_.Add("}");
}

// Empty: there is no such map.
void AttentionText::AddMap(const char* name, const std::vector<float>& map) {
  pieces_.Add(std::string(",\"") + name + "\":");
  if (map.empty()) return pieces_.Add("null");
  if (!options_.float16) {
    return pieces_.AddList(map.size(),
                           [&map](size_t i, std::string* out) { AppendJsonFloat(map[i], out); });
  }
  pieces_.Add("\"");
  pieces_.AddItems(
      (map.size() + kNumbersPerMapPiece - 1) / kNumbersPerMapPiece,
      [&map](size_t i, std::string* out) {
        const std::span<const float> rest = std::span(map).subspan(i * kNumbersPerMapPiece);
        AppendFloat16s(rest.first(std::min(kNumbersPerMapPiece, rest.size())), out);
      });
  pieces_.Add("\"");
}

bool AttentionText::Write(size_t enough, std::string* out) {
  pieces_.Write(enough, out);
  return pieces_.empty();
}

struct AttentionExchange::Place {
  std::function<void()> wake;
  std::mutex mutex;
  std::optional<Result<SharedAttentionAnswer>> answer;
};

std::shared_ptr<AttentionExchange::Place> AttentionExchange::NewPlace(std::function<void()> wake) {
  auto place = std::make_shared<Place>();
  place->wake = std::move(wake);
  return place;
}

void AttentionExchange::Fill(Place& place, Result<SharedAttentionAnswer> answer) {
  {
    std::lock_guard lock(place.mutex);
    place.answer = std::move(answer);
  }
  place.wake();
}

AttentionExchange::AttentionExchange(std::shared_ptr<AttentionMapsCall> call,
                                     std::shared_ptr<Place> place, AttentionText::Options options,
                                     Hooks hooks)
    : call_(std::move(call)),
      place_(std::move(place)),
      options_(std::move(options)),
      hooks_(std::move(hooks)) {}

AttentionExchange::~AttentionExchange() {
  call_->Abandon();
  hooks_.on_end(outcome_);
}

std::optional<HttpReply> AttentionExchange::Reply() {
  std::optional<Result<SharedAttentionAnswer>> answer;
  {
    std::lock_guard lock(place_->mutex);
    answer = std::exchange(place_->answer, std::nullopt);
  }
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
