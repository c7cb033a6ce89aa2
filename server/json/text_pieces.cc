// SPDX-License-Identifier: Apache-2.0
#include "server/json/text_pieces.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "server/json/json.h"

namespace diffserve {
namespace {

constexpr size_t kQuotedBytes = TextPieces::kQuotedBytes;

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// The begin of piece `i`, never within a character. After three continuation bytes, a fourth
// belongs to no character.
size_t PieceBegin(std::string_view text, size_t i) {
  const size_t wanted = i * kQuotedBytes;
  if (wanted >= text.size()) return text.size();
  for (size_t back = 0; back <= 3 && back <= wanted; ++back) {
    if (!IsContinuation(text[wanted - back])) return wanted - back;
  }
  return wanted;
}

bool NeedsNoEscape(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c >= 0x7F || c == '"' || c == '\\') return false;
  }
  return true;
}

// Appends `text` escaped for the inside of a JSON string.
void AppendEscaped(std::string_view text, std::string* out) {
  if (NeedsNoEscape(text)) return void(*out += text);
  const std::string quoted = JsonQuoted(text);
  out->append(quoted, 1, quoted.size() - 2);
}

}  // namespace

std::string& TextPieces::Tail() {
  if (added_.empty() || added_.back().count > 0) added_.emplace_back();
  return added_.back().text;
}

void TextPieces::AddItems(size_t count, AppendItem append) {
  if (count == 0) return;
  if (added_.empty() || added_.back().count > 0) added_.emplace_back();
  added_.back().count = count;
  added_.back().append = std::move(append);
}

void TextPieces::AddQuoted(std::string_view text) {
  if (text.size() <= kQuotedBytes) return AppendJsonString(text, &Tail());
  Add("\"");
  AddItems((text.size() + kQuotedBytes - 1) / kQuotedBytes, [text](size_t i, std::string* out) {
    const size_t begin = PieceBegin(text, i);
    AppendEscaped(text.substr(begin, PieceBegin(text, i + 1) - begin), out);
  });
  Add("\"");
}

void TextPieces::Write(size_t enough, std::string* out) {
  TakeAdded();
  while (!levels_.empty() && out->size() < enough) {
    Level& level = levels_.back();
    Part& part = level.parts[level.first];
    *out += std::exchange(part.text, {});
    if (part.next < part.count) part.append(part.next++, out);
    DropWritten();
    TakeAdded();
  }
}

void TextPieces::TakeAdded() {
  if (!added_.empty()) levels_.push_back({std::exchange(added_, {})});
}

void TextPieces::DropWritten() {
  while (!levels_.empty()) {
    Level& level = levels_.back();
    if (level.first < level.parts.size()) {
      Part& part = level.parts[level.first];
      if (!part.text.empty() || part.next < part.count) return;
      part = {};
      ++level.first;
    } else {
      levels_.pop_back();
    }
  }
}

void AppendJsonString(std::string_view text, std::string* out) {
  *out += '"';
  AppendEscaped(text, out);
  *out += '"';
}

void AppendJsonFloat(float value, std::string* out) {
  char text[32];
  out->append(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

void AppendJsonNumber(double value, std::string* out) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  out->append(text, end);
  const auto marks_fraction = [](char c) { return c == '.' || c == 'e'; };
  if (std::none_of(text, end, marks_fraction)) *out += ".0";
}

}  // namespace diffserve
