// SPDX-License-Identifier: Apache-2.0
#include "engine/text/text_marker.h"

#include <algorithm>
#include <utility>

namespace diffserve {

TextMarker::TextMarker(const Tokenizer& tokenizer, std::string text, int vocab_size,
                       std::vector<int32_t> eos_token_ids)
    : tokenizer_(tokenizer),
      text_(std::move(text)),
      vocab_size_(vocab_size),
      eos_token_ids_(std::move(eos_token_ids)),
      borders_(text_.size(), 0) {
  for (size_t i = 1; i < text_.size(); ++i) {
    size_t border = borders_[i - 1];
    while (border > 0 && text_[i] != text_[border]) border = borders_[border - 1];
    borders_[i] = text_[i] == text_[border] ? border + 1 : 0;
  }
}

// REQUIRES: matched < size().
size_t TextMarker::Step(size_t matched, char c) const {
  while (matched > 0 && text_[matched] != c) matched = borders_[matched - 1];
  return text_[matched] == c ? matched + 1 : 0;
}

size_t TextMarker::Advance(size_t matched, int32_t token) const {
  if (!tokenizer_.table().Contains(token)) return matched;
  for (const char c : tokenizer_.table().Bytes(token)) {
    matched = Step(matched, c);
    if (matched == size()) break;
  }
  return matched;
}

std::optional<size_t> TextMarker::Begin(size_t matched, int32_t token) const {
  if (!tokenizer_.table().Contains(token)) return std::nullopt;
  for (const char c : tokenizer_.table().Bytes(token)) {
    if (matched == size()) break;
    if (c == text_[matched])
      ++matched;
    else if (matched > 0 || std::string_view(" \t\n\r").find(c) == std::string_view::npos)
      return std::nullopt;
  }
  return matched;
}

void TextMarker::FindOvershooting() {
  overshooting_.resize(size());
  const int tokens = std::min(vocab_size_, tokenizer_.vocab_size());
  for (int32_t token = 0; token < tokens; ++token) {
    const std::string_view bytes = tokenizer_.table().Bytes(token);
    const size_t last = bytes.rfind(text_.back(), bytes.size() < 2 ? 0 : bytes.size() - 2);
    if (bytes.size() < 2 || last == bytes.npos) continue;
    for (size_t begin = 0; begin < size(); ++begin) {
      size_t matched = begin;
      for (size_t i = 0; i + 1 < bytes.size() && matched < size(); ++i)
        matched = Step(matched, bytes[i]);
      if (matched == size()) overshooting_[begin].push_back(token);
    }
  }
}

Result<std::shared_ptr<const TextMarker>> TextMarker::Make(const Tokenizer& tokenizer,
                                                           const std::string& text, int vocab_size,
                                                           std::vector<int32_t> eos_token_ids) {
  if (text.empty() || text.size() > kMaxBytes) {
    return InvalidArgument("the marker '" + text.substr(0, kMaxBytes) + "' has " +
                           std::to_string(text.size()) + " bytes; allowed are 1 .. " +
                           std::to_string(kMaxBytes));
  }
  if (tokenizer.table().decoding == TokenTable::Decoding::kLibrary) {
    return Status(
        StatusCode::kUnimplemented,
        "this model's tokenizer does not define the bytes of each token, which the search "
        "for the marker '" +
            text + "' needs");
  }
  std::shared_ptr<TextMarker> marker(
      new TextMarker(tokenizer, text, vocab_size, std::move(eos_token_ids)));
  if (marker->borders_.back() != 0)
    return InvalidArgument("the marker '" + text + "' begins with its own end");
  Result<std::vector<int32_t>> tokens = tokenizer.Encode(text, false);
  if (!tokens.ok()) return tokens.status();
  size_t matched = 0;
  for (size_t i = 0; i < tokens->size() && matched < marker->size(); ++i) {
    if ((*tokens)[i] >= vocab_size) break;
    matched = marker->Advance(matched, (*tokens)[i]);
    if (i + 1 < tokens->size() && matched == marker->size()) matched = 0;
  }
  if (matched != marker->size())
    return InvalidArgument("the model's tokens do not spell the marker '" + text + "'");
  marker->tokens_ = std::move(tokens).value();
  marker->FindOvershooting();
  return std::shared_ptr<const TextMarker>(std::move(marker));
}

}  // namespace diffserve
