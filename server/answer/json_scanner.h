// JsonScanner: one JSON value recognised a byte at a time (RFC 8259), without a tree: it knows
// where the value ends and that it is one. A model's text is what comes in, so depth is limited and
// nothing is kept but a bit a level.
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace diffserve {

class JsonScanner {
 public:
  static constexpr int kMaxDepth = 64;  // of arrays and objects inside one another

  enum class Step {
    kMore,   // the byte belongs to the value, which goes on
    kEnd,    // the value ends with this byte
    kPast,   // the value, a number, ended before this byte
    kWrong,  // no JSON value goes on like that
  };
  // REQUIRES: the last answer was kMore.
  Step Push(char c);
  // The value is whole where the text ends: a number has no end of its own.
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
    kComma,  // or the end of what is open
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
  std::string_view word_;                     // what is left of true, false or null
  int left_ = 0;                              // hex digits, or bytes of a character
  unsigned char least_ = 0x80, most_ = 0xBF;  // of the character's next byte
};

// Whether `text` is one JSON value, with whitespace around it.
bool IsJson(std::string_view text);
// Whether it is an object.
bool IsJsonObject(std::string_view text);

// Takes the text of a JSON string, between its quotes, apart. REQUIRES: a JsonScanner took it.
// Half a surrogate pair becomes U+FFFD.
std::string JsonUnescaped(std::string_view text);

// Appends `text` as it is written between the quotes of a JSON string.
void AppendJsonEscaped(std::string_view text, std::string* out);

}  // namespace diffserve
