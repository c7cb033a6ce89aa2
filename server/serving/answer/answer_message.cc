// SPDX-License-Identifier: Apache-2.0
#include "server/serving/answer/answer_message.h"

#include <utility>

namespace diffserve {
namespace {

uint64_t Mixed(uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t HashOf(const CallIdKey& key) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : key.response_id)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  hash = Mixed(hash ^ static_cast<uint64_t>(key.created));
  return Mixed(hash + (static_cast<uint64_t>(key.choice) << 32) + static_cast<uint64_t>(key.call));
}

std::string Digits(uint64_t value, size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i, value >>= 4) text += kDigits[value & 0xF];
  return text;
}

}  // namespace

void AnswerMessage::Add(AnswerPart part) {
  switch (part.kind) {
    case AnswerPart::Kind::kContent:
      content += part.text;
      break;
    case AnswerPart::Kind::kReasoning:
      reasoning += part.text;
      break;
    case AnswerPart::Kind::kToolCall:
      calls.push_back({part.call, true, std::move(part.text), {}});
      break;
    case AnswerPart::Kind::kToolArguments:
      if (calls.empty() || calls.back().index != part.call)
        calls.push_back({part.call, false, {}, {}});
      calls.back().arguments += part.text;
      break;
  }
}

void AnswerMessage::Add(std::vector<AnswerPart> parts) {
  for (AnswerPart& part : parts) Add(std::move(part));
}

void AnswerMessage::Append(AnswerMessage next) {
  content += next.content;
  reasoning += next.reasoning;
  for (AnswerCall& call : next.calls) {
    if (call.opens)
      calls.push_back(std::move(call));
    else if (!calls.empty())
      calls.back().arguments += call.arguments;
  }
}

std::string CallId(const CallIdKey& key, std::string_view prefix) {
  const uint64_t hash = HashOf(key);
  return std::string(prefix) + Digits(hash, 16) + Digits(Mixed(hash + 1), 8);
}

std::string ShortCallId(const CallIdKey& key) { return Digits(HashOf(key), 9); }

}  // namespace diffserve
