// SPDX-License-Identifier: Apache-2.0
// JsonScanner: recognises one JSON value (RFC 8259), byte by byte and without a tree. It finds the
// end of the value and checks that it is valid. Its input is a model's text, so depth is limited
// and it keeps only one bit per level.
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace diffserve {

// Whether `c` is whitespace in JSON.
constexpr bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class JsonScanner {
 public:
  static constexpr int kMaxDepth = 64;  // of nested arrays and objects

  enum class Step {
    kMore,   // the value continues after this byte
    kEnd,    // the value ends with this byte
    kPast,   // the value, a number, ended before this byte
    kWrong,  // this byte cannot follow in a JSON value
  };
  // REQUIRES: the last answer was kMore.
  Step Push(char c);
  // Whether the value is complete if the text ends here. Only a number needs this: it has no end
  // mark.
  bool EndsHere() const;
  // How deep the last byte is; 0 outside of arrays and objects.
  int depth() const { return depth_; }
  bool in_string() const { return state_ >= State::kString && state_ <= State::kUtf8; }
  bool in_key() const { return in_string() && key_; }
  bool expects_value() const { return state_ == State::kValue || state_ == State::kFirstValue; }

 private:
  enum class State : uint8_t {
    kValue,       // a value must come
    kFirstValue,  // or the end of the array
    kFirstKey,    // or the end of the object
    kKey,
    kColon,
    kComma,  // or the end of the array or object
    kString,
    kEscape,
    kHex,
    kUtf8,
    kWord,
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
  };
  bool InNumber() const { return state_ >= State::kMinus; }
  Step Open(bool object);
  Step Close(bool object);
  Step Ended();  // a value that ends with this byte
  Step BeginValue(char c);
  Step InString(char c);
  Step InDigits(char c);

  State state_ = State::kValue;
  bool key_ = false;  // the string is a key
  int depth_ = 0;
  std::array<bool, kMaxDepth> object_{};      // by level
  std::string_view word_;                     // the rest of true, false or null
  int left_ = 0;                              // hex digits or bytes of a character that must follow
  unsigned char least_ = 0x80, most_ = 0xBF;  // of the character's next byte
};

// Whether `text` is one JSON value, with whitespace around it.
bool IsJson(std::string_view text);
// Whether it is an object.
bool IsJsonObject(std::string_view text);

// Decodes the text of a JSON string, given without its quotes. REQUIRES: a JsonScanner accepted it.
// An unpaired surrogate becomes U+FFFD.
std::string JsonUnescaped(std::string_view text);

}  // namespace diffserve
