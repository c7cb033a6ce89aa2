// TokenTable: the bytes each token id stands for, and TokenStream: ids turned into text by it, one
// after another. Where a model's decoder works token by token (byte-level BPE, sentencepiece,
// WordPiece), this is the one way text is made, streamed or whole. TokenTable is const after it was
// filled; a TokenStream is owned by one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/utf8_repair.h"

namespace diffserve {

struct TokenTable {
  // kLibrary: the text is not made token by token, and only the Rust library can decode.
  enum class Decoding { kLibrary, kCharacters, kBytes };
  static constexpr unsigned char kIsToken = 1, kIsSpecial = 2;

  std::string bytes;
  std::vector<uint32_t> ends;        // [vocab] token i is bytes[ends[i - 1], ends[i])
  std::string first_bytes;           // the same for a token that opens a text: it may lose a space
  std::vector<uint32_t> first_ends;  // [vocab], or empty if that makes no difference
  std::string flags;                 // [vocab]
  Decoding decoding = Decoding::kLibrary;

  bool Contains(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < ends.size(); }
  bool IsSpecial(int32_t id) const {
    return Contains(id) && (flags[static_cast<size_t>(id)] & kIsSpecial) != 0;
  }
  // REQUIRES: Contains(id).
  std::string_view Bytes(int32_t id) const { return Piece(bytes, ends, static_cast<size_t>(id)); }
  std::string_view FirstBytes(int32_t id) const {
    return first_ends.empty() ? Bytes(id) : Piece(first_bytes, first_ends, static_cast<size_t>(id));
  }
  // Whether a text that shows special tokens, or does not, has anything of this one.
  bool HasText(int32_t id, bool skip_special_tokens) const;
  // How many of a sequence's first tokens find no text before them: up to and with the first one
  // that has text.
  size_t OpeningTokens(std::span<const int32_t> ids, bool skip_special_tokens) const;

 private:
  static std::string_view Piece(std::string_view all, const std::vector<uint32_t>& ends, size_t i) {
    const uint32_t begin = i == 0 ? 0 : ends[i - 1];
    return all.substr(begin, ends[i] - begin);
  }
};

class TokenStream {
 public:
  // The text that follows `context`; an incomplete character at its end comes with what completes
  // or breaks it. REQUIRES: table.decoding != kLibrary. `table` outlives this.
  TokenStream(const TokenTable& table, bool skip_special_tokens,
              std::span<const int32_t> context = {});
  // Appends to `out` the whole characters that `id` completes. An id without token stands for
  // nothing.
  void Push(int32_t id, std::string& out);
  void Finish(std::string& out);
  // Nothing so far has text, nor has the context: the next token that has some opens the text.
  bool at_start() const { return at_start_; }
  // The first bytes of a character that is incomplete so far.
  const std::string& incomplete() const { return repair_.pending(); }

 private:
  const TokenTable* table_;
  bool skip_special_tokens_;
  bool at_start_ = true;
  Utf8Repair repair_;
};

}  // namespace diffserve
