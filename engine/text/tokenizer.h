// Tokenizer: text <-> token ids, from a model directory's tokenizer.json (the Rust crate
// `tokenizers` behind engine/text/ffi). Thread safety: const after Load; all methods may run on
// many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/token_table.h"
#include "kernels/base/status.h"

namespace diffserve_ffi {
struct FfiTokenizer;
}

namespace diffserve {

struct EncodeOptions {
  bool add_special_tokens = false;  // whether the post-processor adds BOS and the like (true for
                                    // plain prompts, false after a chat template)
  char32_t guard = 0;               // as RenderedChat has it
  size_t max_tokens = 0;            // once there are more, the rest of the text is left out; 0: no
                                    // limit
};

class Tokenizer {
 public:
  // Reads what TokenFiles names. Error: one line with the file and what is
  // wrong.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);
  ~Tokenizer();

  // The time is linear in the text for every pattern that models use; the caller limits the text's
  // length.
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const;
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const {
    return Encode(text, {.add_special_tokens = add_special_tokens});
  }
  // Bytes of a text that one token stands for at most, so that a text cannot have fewer tokens than
  // its bytes by that. 0: a token of this vocabulary may stand for any number of them.
  size_t max_token_bytes() const;
  // Error: an id outside the vocabulary. As transformers without clean-up; only where byte tokens
  // (<0xNN>) mix whole and broken characters in one run, the whole ones are kept, so that they can
  // be streamed.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  // The bytes a token stands for within a text, or where it opens one; they may be part of a UTF-8
  // character (for logprobs). Empty for an id without token.
  std::string TokenBytes(int32_t id) const;
  std::string FirstTokenBytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // Of the eos_token that the files name; nullopt: they name none, or one that is no token here.
  std::optional<int32_t> eos_token_id() const;
  int vocab_size() const;  // ids with added tokens: 0 .. vocab_size - 1
  const TokenTable& table() const;
  const diffserve_ffi::FfiTokenizer* ffi() const;  // for ChatTemplate

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
