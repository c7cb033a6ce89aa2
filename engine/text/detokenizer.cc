// SPDX-License-Identifier: Apache-2.0
#include "engine/text/detokenizer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/text/utf8_repair.h"

namespace diffserve {
namespace {

// A character is complete after a few tokens. If a longer window ends in U+FFFD, that is final.
constexpr size_t kMaxUnreadIds = 16;
// The last ids of a context, which affect how the next id is decoded.
constexpr size_t kMaxContextIds = 2 * kMaxUnreadIds;

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::span<const int32_t> context)
    : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {
  const TokenTable& table = tokenizer.table();
  if (table.decoding != TokenTable::Decoding::kLibrary) {
    stream_.emplace(table, skip_special_tokens, context);
    return;
  }
  size_t begin = context.size();
  for (size_t count = 0; begin > 0 && count < kMaxContextIds;)
    count += table.HasText(context[--begin], skip_special_tokens) ? 1 : 0;
  for (const int32_t id : context.subspan(begin)) PushWindow(id);
}

std::string Detokenizer::Push(int32_t id) {
  if (!stream_) return PushWindow(id);
  std::string delta;
  stream_->Push(id, delta);
  return delta;
}

std::string Detokenizer::PushWindow(int32_t id) {
  if (!tokenizer_->table().HasText(id, skip_special_tokens_)) return {};
  window_.push_back(id);
  const Result<std::string> decoded = tokenizer_->Decode(window_, skip_special_tokens_);
  if (!decoded.ok()) return {};
  const std::string& text = decoded.value();
  const bool grows = text.size() > shown_prefix_.size() && text.starts_with(shown_prefix_);
  const bool whole = !text.ends_with(kReplacementCharacter) ||
                     window_.size() - read_ > kMaxUnreadIds;
  if (!grows || !whole) return {};
  std::string delta = text.substr(shown_prefix_.size());
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(read_));
  read_ = window_.size();
  shown_prefix_ = tokenizer_->Decode(window_, skip_special_tokens_).value();
  return delta;
}

std::string Detokenizer::Finish() {
  std::string rest;
  if (stream_) {
    stream_->Finish(rest);
    return rest;
  }
  const Result<std::string> decoded = tokenizer_->Decode(window_, skip_special_tokens_);
  if (decoded.ok() && decoded.value().starts_with(shown_prefix_))
    rest = decoded.value().substr(shown_prefix_.size());
  window_.clear();
  shown_prefix_.clear();
  read_ = 0;
  return rest;
}

Result<std::string> TextBefore(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                               bool skip_special_tokens) {
  const TokenTable& table = tokenizer.table();
  Detokenizer stream(tokenizer, skip_special_tokens, ids);
  size_t count = ids.size();
  for (size_t unread = stream.num_unread(); unread > 0;)
    unread -= table.HasText(ids[--count], skip_special_tokens) ? 1 : 0;
  Result<std::string> text = tokenizer.Decode(ids.first(count), skip_special_tokens);
  if (!text.ok() || table.decoding == TokenTable::Decoding::kLibrary) return text;
  text->resize(text->size() - stream.Finish().size());
  return text;
}

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop_in_output)
    : include_stop_in_output_(include_stop_in_output) {
  for (std::string& text : stops) {
    Stop stop{std::move(text), {}, 0};
    for (size_t i = 0, border = 0; i < stop.text.size(); ++i) {
      if (i > 0) {
        while (border > 0 && stop.text[i] != stop.text[border]) border = stop.borders[border - 1];
        if (stop.text[i] == stop.text[border]) ++border;
      }
      stop.borders.push_back(border);
    }
    stops_.push_back(std::move(stop));
  }
}

void StopMatcher::Advance(Stop& stop, char c) {
  if (stop.text.empty()) return;
  if (stop.matched == stop.text.size()) stop.matched = stop.borders[stop.matched - 1];
  while (stop.matched > 0 && stop.text[stop.matched] != c)
    stop.matched = stop.borders[stop.matched - 1];
  if (stop.text[stop.matched] == c) ++stop.matched;
}

StopMatcher::Piece StopMatcher::Push(std::string_view delta, bool may_stop) {
  if (stops_.empty()) return {std::string(delta), std::nullopt};
  Piece piece;
  const size_t held_before = held_.size();
  held_ += delta;
  for (size_t i = 0; i < delta.size(); ++i) {
    for (size_t s = 0; s < stops_.size(); ++s) {
      Stop& stop = stops_[s];
      Advance(stop, delta[i]);
      if (!may_stop || stop.text.empty() || stop.matched < stop.text.size()) continue;
      if (!piece.matched || stop.text.size() > stops_[*piece.matched].text.size())
        piece.matched = s;
    }
    if (!piece.matched) continue;
    const size_t end = held_before + i + 1;
    piece.text = held_.substr(
        0, include_stop_in_output_ ? end : end - stops_[*piece.matched].text.size());
    held_.clear();
    return piece;
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) {
    // A complete stop string that may not stop is text, but its end may still begin another one.
    const bool whole = !stop.text.empty() && stop.matched == stop.text.size();
    keep = std::max(keep, whole ? stop.borders.back() : stop.matched);
  }
  piece.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return piece;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace diffserve
