// SPDX-License-Identifier: Apache-2.0
// TextMarker: a text that separates parts of an answer, such as `</think>`. It is prepared for one
// vocabulary: it knows how much of the text each token adds, whether the vocabulary has a token for
// it or spells it in several. Const; any number of constraints share one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"
#include "kernels/base/status.h"

namespace diffserve {

class TextMarker {
 public:
  static constexpr size_t kMaxBytes = 64;

  // `tokenizer` outlives this. `eos_token_ids` end a text. Error: kInvalidArgument if the text is
  // empty or above kMaxBytes, begins with its own end, or cannot be spelled by the vocabulary;
  // kUnimplemented if the tokenizer does not define the bytes of a token.
  static Result<std::shared_ptr<const TextMarker>> Make(const Tokenizer& tokenizer,
                                                        const std::string& text, int vocab_size,
                                                        std::vector<int32_t> eos_token_ids);

  struct Match {
    size_t matched = 0;     // bytes of the marker; size(): it is complete
    std::string_view rest;  // text after the complete marker
  };
  // How much of the marker an answer begins with after `text`, ignoring leading whitespace, if it
  // began with `matched` bytes of it before; nullopt: it begins with something else.
  std::optional<Match> Begin(size_t matched, std::string_view text) const;
  // How much of the marker the text ends with after `text`, if it ended with `matched` bytes of it
  // before.
  Match Advance(size_t matched, std::string_view text) const;

  // The text that a token adds. A special token adds none, unless the marker is one.
  std::string_view TextOf(int32_t token) const;
  static bool IsSpace(std::string_view text);  // text of whitespace only

  size_t size() const { return text_.size(); }
  // The tokens that spell the marker from byte `matched` on; empty if the vocabulary cannot, which
  // does not occur at 0.
  const std::vector<int32_t>& Rest(size_t matched) const { return rests_[matched]; }
  // Tokens that add to the marker, if an answer began with `matched` bytes of it. See Begin.
  const std::vector<int32_t>& Next(size_t matched) const { return next_[matched]; }
  // Tokens that complete the marker and have more text after it, if the text ended with `matched`
  // bytes.
  const std::vector<int32_t>& Overshooting(size_t matched) const { return overshooting_[matched]; }
  const std::vector<int32_t>& spaces() const { return spaces_; }  // tokens of whitespace only
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }
  int vocab_size() const { return vocab_size_; }

 private:
  TextMarker(const Tokenizer& tokenizer, std::string text, int vocab_size,
             std::vector<int32_t> eos_token_ids);
  size_t Step(size_t matched, char c) const;
  bool Spell(const std::vector<int32_t>& tokens);
  void FindRests();
  void FindTokens();

  const Tokenizer& tokenizer_;
  const std::string text_;
  const int vocab_size_;
  const std::vector<int32_t> eos_token_ids_;
  bool special_ = false;         // a special token spells it
  std::vector<size_t> borders_;  // [i]: length of the longest proper border of text_[0, i] (Knuth,
                                 // Morris, Pratt)
  std::vector<std::vector<int32_t>> rests_;         // [size()]
  std::vector<std::vector<int32_t>> next_;          // [size()]
  std::vector<std::vector<int32_t>> overshooting_;  // [size()]
  std::vector<int32_t> spaces_;
};

}  // namespace diffserve
