// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/embedding_reply.h"

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/process/check.h"
#include "server/json/base64.h"

namespace diffserve {
namespace {

void AppendLittleEndian(float number, std::string* out) {
  const auto bits = std::bit_cast<uint32_t>(number);
  for (int shift = 0; shift < 32; shift += 8) *out += static_cast<char>(bits >> shift & 0xff);
}

}  // namespace

void EmbeddingReply::OnDone(AnswerState* answer) {
  if (!answer->status.ok()) return;
  const Usage& usage = answer->usage;
  JsonWriter json(&answer->pieces);
  json.Begin('{').Add("object", "list");
  if (!form_.pooling_id.empty()) json.Add("id", form_.pooling_id).Add("created", form_.created);
  json.Key("data");
  json.List(pools_.size(), [this](size_t i, JsonWriter& item) { AddItem(i, item); });
  json.Add("model", form_.model).Key("usage").Begin('{').Add("prompt_tokens", usage.prompt_tokens);
  json.Add("total_tokens", usage.prompt_tokens).Key("prompt_tokens_details");
  json.Begin('{').Add("cached_tokens", usage.cached_tokens).End('}').End('}').End('}');
}

void EmbeddingReply::AddItem(size_t index, JsonWriter& json) const {
  const HiddenStatePool& pool = *pools_[index];
  DS_CHECK(pool.is_complete() && pool.status().ok(), "the engine has pooled every prompt");
  const bool is_pooling = !form_.pooling_id.empty();
  json.Begin('{').Add("object", is_pooling ? "pooling" : "embedding").Add("index", index);
  json.Key(is_pooling ? "data" : "embedding");
  AddVectors(pool, json);
  json.End('}');
}

// Base64 of all numbers, one vector, or a list of the vectors of each token.
void EmbeddingReply::AddVectors(const HiddenStatePool& pool, JsonWriter& json) const {
  const std::span<const float> values = pool.values();
  const auto add_vector = [](std::span<const float> vector, JsonWriter& out) {
    out.List(vector.size(), [vector](size_t i, JsonWriter& item) { item.Value(vector[i]); });
  };
  if (form_.base64) {
    WriteBase64(
        values.size(),
        [values](size_t i, std::string* bytes) { AppendLittleEndian(values[i], bytes); }, &json);
  } else if (pool.keeps_each()) {
    const size_t width = pool.dimensions();
    json.List(values.size() / width, [values, width, add_vector](size_t i, JsonWriter& item) {
      add_vector(values.subspan(i * width, width), item);
    });
  } else {
    add_vector(values, json);
  }
}

}  // namespace diffserve
