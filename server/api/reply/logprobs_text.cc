// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/logprobs_text.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "server/json/json.h"

namespace diffserve {
namespace {

std::span<const TokenLogprob> FirstOf(const std::vector<TokenLogprob>& top, int count) {
  return std::span(top).first(std::min(static_cast<size_t>(std::max(count, 0)), top.size()));
}

// Members of a token. The bytes are the token's, however it is named.
void WriteChatToken(int32_t id, const TokenBytes& token_bytes, bool as_id, float logprob,
                    JsonWriter& json) {
  const std::string bytes = token_bytes(id);
  json.Add("token", as_id ? TokenName(id, token_bytes, as_id) : bytes);
  json.Add("logprob", LogprobNumber(logprob)).Key("bytes").Begin('[');
  for (const char byte : bytes) json.Value(static_cast<unsigned char>(byte));
  json.End(']');
}

// The token itself comes first; its rank is known only if it is among the alternatives.
void WritePromptToken(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                      JsonWriter& json) {
  const auto& top = sample.top_logprobs;
  const auto put = [&](int32_t id, float logprob, size_t rank) {
    json.Key(std::to_string(id)).Begin('{').Add("logprob", LogprobNumber(logprob)).Key("rank");
    rank == 0 ? json.Value(nullptr) : json.Value(rank);
    json.Add("decoded_token", TokenName(id, token_bytes, /*as_id=*/false)).End('}');
  };
  const auto own = std::ranges::find(top, sample.token, &TokenLogprob::token);
  json.Begin('{');
  put(sample.token, sample.logprob,
      own == top.end() ? 0 : static_cast<size_t>(own - top.begin()) + 1);
  for (size_t i = 0; i < FirstOf(top, num_top).size(); ++i) {
    if (top[i].token != sample.token) put(top[i].token, top[i].logprob, i + 1);
  }
  json.End('}');
}

}  // namespace

std::string TokenName(int32_t id, const TokenBytes& token_bytes, bool as_id) {
  if (as_id) return "token_id:" + std::to_string(id);
  std::string bytes = token_bytes(id);
  if (IsUtf8(bytes)) return bytes;
  constexpr char kHex[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const unsigned char c : bytes) name += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
  return name;
}

double LogprobNumber(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0;
}

int64_t CharactersStartedIn(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

// Tokens may share a text: an object has each key once, with the value of the last.
void WriteTopLogprobs(const SampleResult& sample, const LogprobForm& form, bool opens_text,
                      JsonWriter* json) {
  std::vector<std::pair<std::string, float>> members;
  const auto put = [&](int32_t id, float logprob) {
    std::string key = TokenName(id, form.texts.At(opens_text), form.as_ids);
    const auto same = std::ranges::find(members, key, &std::pair<std::string, float>::first);
    if (same == members.end())
      members.emplace_back(std::move(key), logprob);
    else
      same->second = logprob;
  };
  for (const TokenLogprob& other : FirstOf(sample.top_logprobs, form.num_top))
    put(other.token, other.logprob);
  put(sample.token, sample.logprob);
  json->Begin('{');
  for (const auto& [key, logprob] : members) json->Add(key, LogprobNumber(logprob));
  json->End('}');
}

void WriteChatLogprobs(GeneratedTokens generated, const LogprobForm& form, JsonWriter* json) {
  json->List(generated.tokens.size(), [generated, &form](size_t i, JsonWriter& item) {
    const SampleResult& sample = generated.tokens[i];
    const TokenBytes& bytes = form.texts.At(i < generated.opening_tokens);
    item.Begin('{');
    WriteChatToken(sample.token, bytes, form.as_ids, sample.logprob, item);
    item.Key("top_logprobs").Begin('[');
    for (const TokenLogprob& other : FirstOf(sample.top_logprobs, form.num_top)) {
      item.Begin('{');
      WriteChatToken(other.token, bytes, form.as_ids, other.logprob, item);
      item.End('}');
    }
    item.End(']').End('}');
  });
}

void WritePromptLogprobs(PromptScores scores, size_t opening_tokens, const LogprobForm& form,
                         JsonWriter* json) {
  const size_t count = scores->size() + 1;
  json->List(count,
             [scores = std::move(scores), opening_tokens, &form](size_t i, JsonWriter& item) {
               if (i == 0) return void(item.Value(nullptr));
               WritePromptToken((*scores)[i - 1], form.num_prompt_top,
                                form.texts.At(i < opening_tokens), item);
             });
}

}  // namespace diffserve
