// SPDX-License-Identifier: Apache-2.0
#include "engine/text/text_marker.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "kernels/base/refusal.h"

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

bool TextMarker::IsSpace(std::string_view text) {
  return text.find_first_not_of(" \t\n\r") == text.npos;
}

std::string_view TextMarker::TextOf(int32_t token) const {
  const TokenTable& table = tokenizer_.table();
  if (!table.Contains(token) || (table.IsSpecial(token) && !special_)) return {};
  return table.Bytes(token);
}

TextMarker::Match TextMarker::Advance(size_t matched, std::string_view text) const {
  while (matched < size() && !text.empty()) {
    matched = Step(matched, text.front());
    text.remove_prefix(1);
  }
  return {matched, text};
}

std::optional<TextMarker::Match> TextMarker::Begin(size_t matched, std::string_view text) const {
  for (; matched < size() && !text.empty(); text.remove_prefix(1)) {
    if (text.front() == text_[matched])
      ++matched;
    else if (matched > 0 || !IsSpace(text.substr(0, 1)))
      return std::nullopt;
  }
  return Match{matched, text};
}

// Takes the usual spelling, if it spells the marker and nothing after it.
bool TextMarker::Spell(const std::vector<int32_t>& tokens) {
  const TokenTable& table = tokenizer_.table();
  special_ = std::ranges::any_of(tokens, [&table](int32_t id) { return table.IsSpecial(id); });
  rests_.assign(size(), {});
  size_t matched = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (matched == size() || tokens[i] >= vocab_size_) return false;
    rests_[matched] = {tokens.begin() + static_cast<std::ptrdiff_t>(i), tokens.end()};
    const Match match = Advance(matched, TextOf(tokens[i]));
    if (!match.rest.empty()) return false;
    matched = match.matched;
  }
  return matched == size();
}

// Spells the marker from each byte on that the usual spelling does not stop at, with as few tokens
// as possible.
void TextMarker::FindRests() {
  std::map<std::string_view, int32_t> pieces;
  for (int32_t token = 0; token < std::min(vocab_size_, tokenizer_.vocab_size()); ++token) {
    const std::string_view text = TextOf(token);
    if (!text.empty() && text.size() <= size() && text_.find(text) != text_.npos)
      pieces.emplace(text, token);
  }
  for (size_t begin = size(); begin-- > 0;) {
    if (!rests_[begin].empty()) continue;
    for (size_t end = begin + 1; end <= size(); ++end) {
      const auto piece = pieces.find(std::string_view(text_).substr(begin, end - begin));
      if (piece == pieces.end() || (end < size() && rests_[end].empty())) continue;
      const size_t more = end < size() ? rests_[end].size() : 0;
      if (!rests_[begin].empty() && rests_[begin].size() <= more + 1) continue;
      rests_[begin] = {piece->second};
      if (more > 0)
        rests_[begin].insert(rests_[begin].end(), rests_[end].begin(), rests_[end].end());
    }
  }
}

void TextMarker::FindTokens() {
  next_.resize(size());
  overshooting_.resize(size());
  for (int32_t token = 0; token < std::min(vocab_size_, tokenizer_.vocab_size()); ++token) {
    const std::string_view text = TextOf(token);
    if (text.empty()) continue;
    if (IsSpace(text)) spaces_.push_back(token);
    for (size_t begin = 0; begin < size(); ++begin) {
      const std::optional<Match> match = Begin(begin, text);
      if (match && match->matched > begin) next_[begin].push_back(token);
    }
    if (text.substr(0, text.size() - 1).find(text_.back()) == text.npos) continue;
    for (size_t begin = 0; begin < size(); ++begin) {
      if (!Advance(begin, text).rest.empty()) overshooting_[begin].push_back(token);
    }
  }
}

Result<std::shared_ptr<const TextMarker>> TextMarker::Make(const Tokenizer& tokenizer,
                                                           const std::string& text, int vocab_size,
                                                           std::vector<int32_t> eos_token_ids) {
  if (text.empty() || text.size() > kMaxBytes) {
    return NotAllowed(
        "the marker " + QuotedText(text) + " has " + std::to_string(text.size()) + " bytes",
        RangeText(1, kMaxBytes));
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
  if (!marker->Spell(*tokens))
    return InvalidArgument("the model's tokens do not spell the marker '" + text + "'");
  marker->FindRests();
  marker->FindTokens();
  return std::shared_ptr<const TextMarker>(std::move(marker));
}

}  // namespace diffserve
