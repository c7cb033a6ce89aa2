// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/logprobs_text.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "server/api/json/text_pieces.h"

namespace diffserve {
namespace {

// JSON has no infinity; other servers send -9999 for a probability of zero.
double LogprobNumber(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0;
}

bool IsUtf8(std::string_view bytes) {
  if (std::ranges::all_of(bytes, [](unsigned char c) { return c < 0x80; })) return true;
  try {
    (void)nlohmann::json(bytes).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

std::span<const TokenLogprob> FirstOf(const std::vector<TokenLogprob>& top, int count) {
  return std::span(top).first(std::min(static_cast<size_t>(std::max(count, 0)), top.size()));
}

// The bytes are the token's, however it is named.
void AppendChatToken(int32_t id, const TokenBytes& token_bytes, bool as_id, float logprob,
                     std::string* out) {
  const std::string bytes = token_bytes(id);
  *out += "{\"token\":";
  if (as_id)
    AppendTokenName(id, token_bytes, as_id, out);
  else
    AppendJsonString(bytes, out);
  *out += ",\"logprob\":";
  AppendLogprob(logprob, out);
  *out += ",\"bytes\":[";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) *out += ',';
    *out += std::to_string(static_cast<unsigned char>(bytes[i]));
  }
  *out += ']';
}

}  // namespace

void AppendTokenKey(const std::string& bytes, std::string* out) {
  if (IsUtf8(bytes)) return AppendJsonString(bytes, out);
  constexpr char kHex[] = "0123456789abcdef";
  *out += "\"bytes:";
  for (const unsigned char c : bytes) {
    *out += "\\\\x";
    *out += kHex[c >> 4];
    *out += kHex[c & 15];
  }
  *out += '"';
}

void AppendTokenName(int32_t id, const TokenBytes& token_bytes, bool as_id, std::string* out) {
  if (!as_id) return AppendTokenKey(token_bytes(id), out);
  *out += "\"token_id:" + std::to_string(id) + '"';
}

void AppendLogprob(float logprob, std::string* out) {
  AppendJsonNumber(LogprobNumber(logprob), out);
}

int64_t CharactersStartedIn(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

// Tokens may share a text: an object has each key once, with the value of the last.
void AppendTopLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                       std::string* out, bool as_ids) {
  std::vector<std::pair<std::string, float>> members;
  const auto put = [&](int32_t id, float logprob) {
    std::string key;
    AppendTokenName(id, token_bytes, as_ids, &key);
    const auto same = std::ranges::find(members, key, &std::pair<std::string, float>::first);
    if (same == members.end())
      members.emplace_back(std::move(key), logprob);
    else
      same->second = logprob;
  };
  for (const TokenLogprob& other : FirstOf(sample.top_logprobs, num_top))
    put(other.token, other.logprob);
  put(sample.token, sample.logprob);
  *out += '{';
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0) *out += ',';
    *out += members[i].first;
    *out += ':';
    AppendLogprob(members[i].second, out);
  }
  *out += '}';
}

void AppendChatLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                        std::string* out, bool as_ids) {
  AppendChatToken(sample.token, token_bytes, as_ids, sample.logprob, out);
  *out += ",\"top_logprobs\":[";
  const auto top = FirstOf(sample.top_logprobs, num_top);
  for (size_t i = 0; i < top.size(); ++i) {
    if (i > 0) *out += ',';
    AppendChatToken(top[i].token, token_bytes, as_ids, top[i].logprob, out);
    *out += '}';
  }
  *out += "]}";
}

// The token itself comes first; its rank is known only if it is among the alternatives.
void AppendPromptLogprobs(const SampleResult& sample, int num_top, const TokenBytes& token_bytes,
                          std::string* out) {
  const auto& top = sample.top_logprobs;
  const auto put = [&](int32_t id, float logprob, size_t rank) {
    *out += '"' + std::to_string(id) + "\":{\"logprob\":";
    AppendLogprob(logprob, out);
    *out += ",\"rank\":" + (rank == 0 ? "null" : std::to_string(rank)) + ",\"decoded_token\":";
    AppendTokenKey(token_bytes(id), out);
    *out += '}';
  };
  const auto own = std::ranges::find(top, sample.token, &TokenLogprob::token);
  *out += '{';
  put(sample.token, sample.logprob,
      own == top.end() ? 0 : static_cast<size_t>(own - top.begin()) + 1);
  for (size_t i = 0; i < FirstOf(top, num_top).size(); ++i) {
    if (top[i].token == sample.token) continue;
    *out += ',';
    put(top[i].token, top[i].logprob, i + 1);
  }
  *out += '}';
}

}  // namespace diffserve
