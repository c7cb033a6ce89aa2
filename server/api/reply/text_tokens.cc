// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/text_tokens.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace diffserve {

void PieceTokens::Append(PieceTokens more) {
  opening_tokens += more.opening_tokens;
  std::ranges::move(more.tokens, std::back_inserter(tokens));
}

size_t PieceTokens::HeldBytes() const {
  size_t bytes = tokens.capacity() * sizeof(SampleResult);
  for (const SampleResult& token : tokens)
    bytes += token.top_logprobs.capacity() * sizeof(TokenLogprob);
  return bytes;
}

void TextTokens::Add(std::vector<SampleResult> tokens, size_t opening_tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t id = tokens[i].token;
    const bool opens = i < opening_tokens;
    const bool hidden = skips_special_ && texts_.is_special(id);
    const std::string bytes = hidden ? std::string() : texts_.At(opens)(id);
    text_ += bytes;
    entries_.push_back({std::move(tokens[i]), bytes.size(), opens});
  }
}

PieceTokens TextTokens::Take(std::string_view piece) {
  const size_t found = text_.find(piece);
  const size_t begin = found == text_.npos ? 0 : found;
  const size_t end = found == text_.npos ? text_.size() : found + piece.size();
  PieceTokens own;
  size_t at = 0;  // of the entry's text
  auto entry = entries_.begin();
  for (; entry != entries_.end() && at < end; ++entry) {
    const size_t next = at + entry->bytes;
    if (next > begin && next > at && !std::exchange(entry->taken, true)) {
      own.opening_tokens += entry->opens ? 1 : 0;
      own.tokens.push_back(std::move(entry->sample));
    }
    if (next > end) {  // its last bytes are in a later piece
      entry->bytes = next - end;
      break;
    }
    at = next;
  }
  entries_.erase(entries_.begin(), entry);
  text_.erase(0, end);
  return own;
}

void TextTokens::Clear() {
  entries_.clear();
  text_.clear();
}

}  // namespace diffserve
