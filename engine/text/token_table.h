// SPDX-License-Identifier: Apache-2.0
// TokenTable: the bytes of each token id. TokenStream: decodes ids to text with the table, one at a
// time. If a model's decoder works token by token (byte-level BPE, sentencepiece, WordPiece), all
// its text is made here, streamed or whole. A TokenTable is const once filled; a TokenStream is
// owned by one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/utf8_repair.h"

namespace diffserve {

struct TokenTable {
  // kLibrary: the text cannot be made token by token; only the Rust library can decode.
  enum class Decoding { kLibrary, kCharacters, kBytes };
  static constexpr unsigned char kIsToken = 1, kIsSpecial = 2;

  std::string bytes;
  std::vector<uint32_t> ends;        // [vocab] token i is bytes[ends[i - 1], ends[i])
  std::string first_bytes;           // bytes of a token that opens a text: it may lose a space
  std::vector<uint32_t> first_ends;  // [vocab], or empty if first_bytes would equal bytes
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
  // Whether this token adds anything to a text that shows, or skips, special tokens.
  bool HasText(int32_t id, bool skip_special_tokens) const;
  // How many leading tokens of a sequence have no text before them: all up to and including the
  // first one with text.
  size_t OpeningTokens(std::span<const int32_t> ids, bool skip_special_tokens) const;

 private:
  static std::string_view Piece(std::string_view all, const std::vector<uint32_t>& ends, size_t i) {
    const uint32_t begin = i == 0 ? 0 : ends[i - 1];
    return all.substr(begin, ends[i] - begin);
  }
};

class TokenStream {
 public:
  // Decodes the text after `context`. An incomplete character at the end of `context` is returned
  // together with the bytes that complete or break it. REQUIRES: table.decoding != kLibrary.
  // `table` outlives this.
  TokenStream(const TokenTable& table, bool skip_special_tokens,
              std::span<const int32_t> context = {});
  // Appends to `out` the whole characters that `id` completes. An id without a token adds nothing.
  void Push(int32_t id, std::string& out);
  void Finish(std::string& out);
  // Whether neither the context nor any pushed token has text, so that the next token with text
  // opens the text.
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
