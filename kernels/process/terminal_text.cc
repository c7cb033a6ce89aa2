// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/terminal_text.h"

#include <algorithm>
#include <cstdint>

namespace diffserve {
namespace {

constexpr size_t kQuotedBytes = 200;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the character that begins with `lead`; 0: none does.
size_t LengthOf(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

bool IsTail(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

uint32_t CodeOf(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(character[i]) & 0xFF; };
  uint32_t code = character.size() == 1 ? byte(0) : byte(0) & (0x7Fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3F);
  return code;
}

// Longer than need be, a surrogate, or beyond the last code.
bool IsWrong(uint32_t code, size_t length) {
  return (length == 3 && code < 0x800) || (length == 4 && code < 0x10000) || code > 0x10FFFF ||
         (code >= 0xD800 && code <= 0xDFFF);
}

bool ChangesDirection(uint32_t code) {
  return (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

// The picture of a control character below U+0020, or of U+007F.
std::string PictureOf(uint32_t code) {
  const uint32_t picture = code == 0x7F ? 0x21 : code;
  return {'\xE2', '\x90', static_cast<char>(0x80 + picture)};
}

std::string Shown(std::string_view character) {
  const uint32_t code = CodeOf(character);
  if (code == '\n' || code == '\t') return std::string(character);
  if (code < 0x20 || code == 0x7F) return PictureOf(code);
  const bool is_control = code >= 0x80 && code < 0xA0;
  const bool is_bad = is_control || ChangesDirection(code) || IsWrong(code, character.size());
  return std::string(is_bad ? kReplacement : character);
}

}  // namespace

std::string TerminalText::Push(std::string_view piece) {
  rest_ += piece;
  std::string shown;
  size_t begin = 0;
  while (begin < rest_.size()) {
    const size_t length = LengthOf(static_cast<unsigned char>(rest_[begin]));
    size_t end = begin + 1;
    while (end < rest_.size() && end < begin + length && IsTail(rest_[end])) ++end;
    const bool is_whole = end == begin + length;
    if (!is_whole && length > 0 && end == rest_.size()) break;
    shown += is_whole ? Shown(std::string_view(rest_).substr(begin, length)) : kReplacement;
    begin = end;
  }
  rest_.erase(0, begin);
  return shown;
}

std::string TerminalText::Finish() {
  if (rest_.empty()) return {};
  rest_.clear();
  return std::string(kReplacement);
}

std::string ShownOnTerminal(std::string_view text) {
  TerminalText terminal;
  std::string shown = terminal.Push(text);
  return shown += terminal.Finish();
}

std::string QuotedOnTerminal(std::string_view text) {
  std::string shown = ShownOnTerminal(text.substr(0, kQuotedBytes));
  std::ranges::replace(shown, '\n', ' ');
  return shown;
}

}  // namespace diffserve
