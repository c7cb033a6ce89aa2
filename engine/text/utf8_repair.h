// SPDX-License-Identifier: Apache-2.0
// Utf8Repair: turns a stream of bytes into valid UTF-8. A character that arrives in pieces is held
// back until it is whole. Invalid bytes become U+FFFD, exactly as in a decode of the whole byte
// string. Owned by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace diffserve {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

class Utf8Repair {
 public:
  // What one U+FFFD replaces: the longest incomplete start of a character (WHATWG, Rust, Python),
  // or each of its bytes (sentencepiece's byte tokens).
  enum class Unit { kCharacter, kByte };

  explicit Utf8Repair(Unit unit) : unit_(unit) {}
  // Appends to `out` what `bytes` completes.
  void Push(std::string_view bytes, std::string& out);
  // Ends the text; an incomplete character becomes U+FFFD.
  void Finish(std::string& out);
  // The bytes of the character that is incomplete so far.
  const std::string& pending() const { return pending_; }

 private:
  void Begin(unsigned char byte, std::string& out);
  void Replace(std::string& out);

  Unit unit_;
  std::string pending_;      // the bytes of the character so far, at most 3
  int missing_ = 0;          // bytes it still needs
  unsigned char lower_ = 0;  // bounds of its next byte
  unsigned char upper_ = 0;
};

}  // namespace diffserve
