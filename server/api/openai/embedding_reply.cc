// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/embedding_reply.h"

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/base/check.h"
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
  json.Begin('{').Add("object", "list").Key("data");
  json.List(pools_.size(), [this](size_t i, JsonWriter& item) { AddEmbedding(i, item); });
  json.Add("model", model_).Key("usage").Begin('{').Add("prompt_tokens", usage.prompt_tokens);
  json.Add("total_tokens", usage.prompt_tokens).Key("prompt_tokens_details");
  json.Begin('{').Add("cached_tokens", usage.cached_tokens).End('}').End('}').End('}');
}

void EmbeddingReply::AddEmbedding(size_t index, JsonWriter& json) const {
  const HiddenStatePool& pool = *pools_[index];
  DS_CHECK(pool.is_complete() && pool.status().ok(), "the engine has pooled every prompt");
  const std::span<const float> values = pool.values();
  json.Begin('{').Add("object", "embedding").Add("index", index).Key("embedding");
  if (base64_) {
    WriteBase64(
        values.size(),
        [values](size_t i, std::string* bytes) { AppendLittleEndian(values[i], bytes); }, &json);
  } else {
    json.List(values.size(), [values](size_t i, JsonWriter& item) { item.Value(values[i]); });
  }
  json.End('}');
}

}  // namespace diffserve
