// SPDX-License-Identifier: Apache-2.0
// TextPieces: a text that is generated while it is sent. It stores the rest of the text as parts of
// many small items and writes as many bytes as requested. So a long text never exists as a whole,
// and it never occupies a thread for long.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace diffserve {

// Bytes of a reply that are made at a time, so that connections take turns. A body that fits has a
// Content-Length.
inline constexpr size_t kTurnBytes = 64 << 10;

class TextPieces {
 public:
  // Appends item `i` of a list. Pieces that it adds itself follow it directly, before item i + 1.
  using AppendItem = std::function<void(size_t i, std::string* out)>;
  static constexpr size_t kQuotedBytes = 16 << 10;  // of a long text in one item

  void Add(std::string_view text) { Tail() += text; }
  // Takes text until the next piece is added.
  std::string& Tail();
  void AddItems(size_t count, AppendItem append);
  // A JSON string; `text` must live until it is written.
  void AddQuoted(std::string_view text);

  // Writes until `out` has at least `enough` bytes, or all. An item is written whole.
  void Write(size_t enough, std::string* out);
  bool empty() const { return levels_.empty() && added_.empty(); }

 private:
  struct Part {
    std::string text;  // then
    size_t count = 0;
    AppendItem append;
    size_t next = 0;
  };
  struct Level {
    std::vector<Part> parts;
    size_t first = 0;  // that is not written
  };
  void TakeAdded();
  void DropWritten();

  std::vector<Level> levels_;  // the last one is written first
  std::vector<Part> added_;    // comes before all of them
};

// `text` as a JSON string literal; bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);
// REQUIRES: finite.
void AppendJsonNumber(double value, std::string* out);
// With the fewest digits that identify the float. REQUIRES: finite.
void AppendJsonFloat(float value, std::string* out);

}  // namespace diffserve
