// Utf8Repair: a stream of bytes turned into valid UTF-8. A character that comes in pieces is held
// until it is whole; what cannot become one is replaced by U+FFFD, exactly as a decoder of the
// whole byte string would do it.
// Owned by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace diffserve {

class Utf8Repair {
 public:
  // What one U+FFFD stands for: the longest start of a character that was broken off (WHATWG, Rust,
  // Python), or each of its bytes (sentencepiece's byte tokens).
  enum class Unit { kCharacter, kByte };

  explicit Utf8Repair(Unit unit) : unit_(unit) {}
  // Appends to `out` what `bytes` completes.
  void Push(std::string_view bytes, std::string& out);
  // A character that is still incomplete is replaced.
  void Finish(std::string& out);
  // The bytes so far of a character that is incomplete.
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
