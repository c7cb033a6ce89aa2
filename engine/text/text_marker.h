// SPDX-License-Identifier: Apache-2.0
// TextMarker: a text that separates parts of an answer, such as `</think>`. It is prepared for one
// vocabulary: it knows how much of the text each token adds. Const; any number of constraints share
// one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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

  // How many bytes of the marker an answer begins with after `token`, ignoring leading whitespace;
  // nullopt: it begins with something else.
  std::optional<size_t> Begin(size_t matched, int32_t token) const;
  // How many bytes of the marker the text ends with after `token`, if it ended with `matched` bytes
  // of it before. size(): the marker is complete.
  size_t Advance(size_t matched, int32_t token) const;
  size_t size() const { return text_.size(); }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // the tokens that spell it
  // Tokens that complete the marker and have more text after it, if the text ended with `matched`
  // bytes.
  const std::vector<int32_t>& Overshooting(size_t matched) const { return overshooting_[matched]; }
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }
  int vocab_size() const { return vocab_size_; }

 private:
  TextMarker(const Tokenizer& tokenizer, std::string text, int vocab_size,
             std::vector<int32_t> eos_token_ids);
  size_t Step(size_t matched, char c) const;
  void FindOvershooting();

  const Tokenizer& tokenizer_;
  const std::string text_;
  const int vocab_size_;
  const std::vector<int32_t> eos_token_ids_;
  std::vector<size_t> borders_;  // [i]: length of the longest proper border of text_[0, i] (Knuth,
                                 // Morris, Pratt)
  std::vector<int32_t> tokens_;
  std::vector<std::vector<int32_t>> overshooting_;  // [size()]
};

}  // namespace diffserve
