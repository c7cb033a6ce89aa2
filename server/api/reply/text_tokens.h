// SPDX-License-Identifier: Apache-2.0
// TextTokens: which tokens a piece of an answer's text is made of. The pieces come later than their
// tokens, and text between them, such as the markers of reasoning, is in no piece.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/response_stream.h"
#include "kernels/ops/sampling_types.h"
#include "server/api/reply/logprobs_text.h"

namespace diffserve {

struct PieceTokens {
  std::vector<SampleResult> tokens;
  size_t opening_tokens = 0;  // as in ResponseDelta

  void Append(PieceTokens more);
  size_t HeldBytes() const;  // besides the object itself
};

class TextTokens {
 public:
  // `skips_special`: special tokens have no text.
  TextTokens(TokenTexts texts, bool skips_special)
      : texts_(std::move(texts)), skips_special_(skips_special) {}

  void Add(std::vector<SampleResult> tokens, size_t opening_tokens);
  // The tokens that have text in the next piece and had none in an earlier one. If the tokens since
  // then have another text, these are all of them.
  PieceTokens Take(std::string_view piece);
  // Forgets the tokens that were added, because their text is in no piece.
  void Clear();

 private:
  struct Entry {
    SampleResult sample;
    size_t bytes = 0;  // of text that is not taken
    bool opens = false;
    bool taken = false;
  };

  const TokenTexts texts_;
  const bool skips_special_;
  std::string text_;  // of all entries
  std::vector<Entry> entries_;
};

}  // namespace diffserve
