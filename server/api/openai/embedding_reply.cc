// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/embedding_reply.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "server/api/json/base64.h"

namespace diffserve {
namespace {

constexpr size_t kBase64Numbers = 3 << 9;  // numbers per piece: a whole number of base64 groups

void AppendLittleEndian(std::span<const float> numbers, std::string* out) {
  for (const float number : numbers) {
    const auto bits = std::bit_cast<uint32_t>(number);
    for (int shift = 0; shift < 32; shift += 8) *out += static_cast<char>(bits >> shift & 0xff);
  }
}

}  // namespace

EmbeddingReply::EmbeddingReply(std::vector<std::shared_ptr<HiddenStatePool>> pools, bool base64,
                               std::string model)
    : pools_(std::move(pools)), base64_(base64), model_(std::move(model)) {}

void EmbeddingReply::Take(ResponseEvent event) {
  auto* const done = std::get_if<ResponseDone>(&event);
  if (done == nullptr || done_) return;
  done_ = true;
  status_ = std::move(done->status);
  if (status_.ok()) AddBody(done->usage);
}

bool EmbeddingReply::Write(size_t enough, std::string* out) {
  pieces_.Write(enough, out);
  return written();
}

void EmbeddingReply::AddBody(const Usage& usage) {
  const std::string tokens = std::to_string(usage.prompt_tokens);
  pieces_.Add("{\"object\":\"list\",\"data\":");
  pieces_.AddList(pools_.size(), [this](size_t i, std::string*) { AddEmbedding(i); });
  pieces_.Add(",\"model\":");
  pieces_.AddQuoted(model_);
  pieces_.Add(",\"usage\":{\"prompt_tokens\":" + tokens + ",\"total_tokens\":" + tokens +
              ",\"prompt_tokens_details\":{\"cached_tokens\":" +
              std::to_string(usage.cached_tokens) + "}}}");
}

void EmbeddingReply::AddEmbedding(size_t index) {
  const HiddenStatePool& pool = *pools_[index];
  DS_CHECK(pool.is_complete() && pool.status().ok(), "the engine has pooled every prompt");
  const std::span<const float> values = pool.values();
  pieces_.Add("{\"object\":\"embedding\",\"index\":" + std::to_string(index) + ",\"embedding\":");
  if (base64_) {
    pieces_.Add("\"");
    pieces_.AddItems((values.size() + kBase64Numbers - 1) / kBase64Numbers,
                     [values](size_t i, std::string* out) {
                       const std::span<const float> rest = values.subspan(i * kBase64Numbers);
                       std::string bytes;
                       AppendLittleEndian(rest.first(std::min(kBase64Numbers, rest.size())),
                                          &bytes);
                       AppendBase64(bytes, out);
                     });
    pieces_.Add("\"");
  } else {
    pieces_.AddList(values.size(),
                    [values](size_t i, std::string* out) { AppendJsonFloat(values[i], out); });
  }
  pieces_.Add("}");
}

}  // namespace diffserve
