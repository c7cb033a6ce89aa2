// TokenTable: the bytes each token id stands for, and TokenStream: ids turned into text by it, one
// after another. Where a model's decoder works token by token (byte-level BPE, sentencepiece), this
// is the one way text is made, streamed or whole. TokenTable is const after it was filled; a
// TokenStream is owned by one thread.
#pragma once

#include <cstdint>
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
  std::string first_bytes;           // the same for the token that opens a text
  std::vector<uint32_t> first_ends;  // [vocab], or empty if that makes no difference
  std::string flags;                 // [vocab]
  Decoding decoding = Decoding::kLibrary;
  uint32_t strip_max = 0;  // how many of `strip` are left out where a text begins
  std::string strip;       // one character

  bool Contains(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < ends.size(); }
  bool IsSpecial(int32_t id) const {
    return Contains(id) && (flags[static_cast<size_t>(id)] & kIsSpecial) != 0;
  }
  // REQUIRES: Contains(id).
  std::string_view Bytes(int32_t id) const { return Piece(bytes, ends, static_cast<size_t>(id)); }
  std::string_view FirstBytes(int32_t id) const {
    return first_ends.empty() ? Bytes(id) : Piece(first_bytes, first_ends, static_cast<size_t>(id));
  }

 private:
  static std::string_view Piece(std::string_view all, const std::vector<uint32_t>& ends, size_t i) {
    const uint32_t begin = i == 0 ? 0 : ends[i - 1];
    return all.substr(begin, ends[i] - begin);
  }
};

class TokenStream {
 public:
  // REQUIRES: table.decoding != kLibrary. `table` outlives this.
  TokenStream(const TokenTable& table, bool skip_special_tokens);
  // Appends to `out` the whole characters that `id` completes. An id without token stands for
  // nothing.
  void Push(int32_t id, std::string& out);
  void Finish(std::string& out);

 private:
  void Strip(std::string& out, size_t begin);

  const TokenTable* table_;
  bool skip_special_tokens_;
  bool first_ = true;
  uint32_t strip_left_;
  Utf8Repair repair_;
};

}  // namespace diffserve
